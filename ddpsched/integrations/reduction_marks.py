"""Marks of the moments at which a rank's gradients were ready, and all ranks' were in, under torch's DDP."""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from ddpsched.errors import ConfigError
from ddpsched.training.clock import Clock


class ReductionMarks:
    """The times of one step's gradients: DDP's own all-reduce, with a mark at its last bucket.

    Wall time to the end of backward is the same on every rank, since the last all-reduce waits for the slowest.
    Raises ConfigError where ``model`` is not in DDP, or has a communication hook.
    """

    def __init__(self, model: Any, clock: Clock) -> None:
        if not isinstance(model, DistributedDataParallel):
            raise ConfigError(
                f"Recorder: model is a {type(model).__name__}, and times of gradients are measured in torch's "
                "DistributedDataParallel; give that, or leave model out"
            )
        self._clock, self._begin, self._ready, self._done = clock, clock.mark(), None, None
        try:
            model.register_comm_hook(None, self._hook)
        except RuntimeError as error:
            raise ConfigError(
                f"Recorder: model has a communication hook already, a Recorder's before or yours ({error}); give "
                "each Recorder a DistributedDataParallel of its own, or leave model out"
            ) from None

    def begin(self) -> None:
        """Mark that the batch is in hand."""
        self._begin, self._ready, self._done = self._clock.mark(), None, None

    def columns(self) -> dict[str, float]:
        """Return ``compute_s`` and ``wait_s`` of the step; nothing where none of its backwards was synchronised."""
        if self._ready is None or self._done is None:
            return {}
        seconds = self._clock.seconds
        return {"compute_s": seconds(self._begin, self._ready), "wait_s": seconds(self._ready, self._done)}

    def _hook(self, state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        last = bucket.is_last()
        if last:
            self._ready = self._clock.mark()
        reduced = allreduce_hook(dist.group.WORLD, bucket)  # type: ignore[arg-type] # the model's, by default

        def done(future: Any) -> torch.Tensor:
            self._done = self._clock.mark()
            total: torch.Tensor = future.value()
            return total

        return reduced.then(done) if last else reduced
