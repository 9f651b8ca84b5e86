"""ddp: torch's DistributedDataParallel, its buckets reduced while backward still runs."""

import inspect
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsched.training.clock import Clock
from ddpsched.training.data import synthetic_batch
from ddpsched.training.loss import loss_sum


class DdpSync:
    """DDP with a communication hook that stamps when the last bucket of this rank was ready.

    Wall time to the end of backward is the same on every rank, since the last
    all-reduce waits for the slowest; only the stamp tells a rank's own work.
    """

    needs_backward = True
    # transformers' buffers are constants; broadcasting them in each forward would be one more collective
    # that a rank in trouble would have to join. The option was renamed on the way from torch 2.6 to 2.13.
    _OPTIONS = inspect.signature(DistributedDataParallel.__init__).parameters
    _BUFFERS: ClassVar[dict[str, Any]] = {
        "forward_sync_buffers" if "forward_sync_buffers" in _OPTIONS else "broadcast_buffers": False
    }

    def __init__(self, module: torch.nn.Module, clock: Clock) -> None:
        self._clock = clock
        self._ready: Any = None
        self._launched: list[int] = []  # sizes of this step's buckets, in the order they were reduced
        self._sizes: list[int] = []  # the same of a whole step
        self._device = next(module.parameters()).device
        self._dtype = next(module.parameters()).dtype
        self.module: torch.nn.Module = DistributedDataParallel(
            module,
            device_ids=[self._device] if self._device.type == "cuda" else None,
            **self._BUFFERS,
        )
        self.module.register_comm_hook(None, self._hook)
        self._settle()

    def _hook(self, state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        if bucket.is_last():
            self._ready = self._clock.mark()
        flat = bucket.buffer()
        self._launched.append(flat.numel())
        flat /= dist.get_world_size()
        work = dist.all_reduce(flat, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    def _settle(self) -> None:
        """Two steps on a synthetic sample: DDP lays out its buckets anew after the first one."""
        for _ in range(2):
            self._launched.clear()
            batch = synthetic_batch(1, 4, self._device)
            logits = self.module(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
            (loss_sum(logits, batch.labels) * 0.0).backward()
        self._sizes = list(self._launched)
        self._launched.clear()
        self.module.zero_grad(set_to_none=True)

    def accumulate(self) -> AbstractContextManager[Any]:
        return self.module.no_sync()  # type: ignore[operator]

    def synchronise(self) -> None:
        """Backward has already waited for every bucket."""
        assert self._launched == self._sizes, (self._launched, self._sizes)
        self._launched.clear()

    def ready_mark(self) -> Any:
        return self._ready

    def join(self) -> None:
        """Reduce zeros for the buckets that this rank's broken backward did not reach; DDP is not used again."""
        for size in self._sizes[len(self._launched) :]:
            dist.all_reduce(torch.zeros(size, dtype=self._dtype, device=self._device))
