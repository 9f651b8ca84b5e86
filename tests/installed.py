"""Abilities that only newer torch has: tests of them are skipped, with the reason, where an older one is installed."""

import pytest
import torch
from torch.distributed.fsdp import FSDPModule

HAS_FSDP = hasattr(FSDPModule, "set_force_sum_reduction_for_comms")
# torch 2.6, the oldest that is supported, has neither
needs_fsdp = pytest.mark.skipif(
    not HAS_FSDP, reason=f'sync.kind = "fsdp" is refused: fully_shard of torch {torch.__version__} cannot add gradients'
)
SHARDS_ON_CPU = hasattr(torch.cpu.Stream, "record_event")
# the oldest torch shards on a GPU alone, so there is nothing to test on a CPU
needs_sharding_on_cpu = pytest.mark.skipif(
    not SHARDS_ON_CPU, reason=f"fully_shard of torch {torch.__version__} fails on a CPU"
)
