"""overlap: one asynchronous all-reduce a parameter, launched as backward makes its gradient ready."""

import torch

from ddpsched.config import SyncConfig
from ddpsched.training.clock import Clock
from ddpsched.training.sync.bucketed import BucketedSync


class OverlapSync(BucketedSync):
    """Buckets that hold one parameter each: most overlap, and most messages."""

    def __init__(self, module: torch.nn.Module, clock: Clock, config: SyncConfig) -> None:
        super().__init__(module, clock, config.model_copy(update={"bucket_mb": 0.0}))
