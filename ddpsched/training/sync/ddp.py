"""ddp: torch's DistributedDataParallel, its buckets reduced while backward still runs."""

import inspect
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsched.config import SyncConfig
from ddpsched.errors import RunError
from ddpsched.training.clock import Clock
from ddpsched.training.collate import without_trace
from ddpsched.training.sync.collective_log import Traffic, wire_dtype
from ddpsched.training.sync.parameter_registry import Buffers, Roster


class DdpSync:
    """DDP with a communication hook that adds instead of averaging, and stamps when a bucket was ready and reduced.

    Wall time to the end of backward is the same on every rank, since the last
    all-reduce waits for the slowest; only the stamp tells a rank's own work.
    """

    needs_backward, joins, barrier = True, True, None
    # A broadcast of buffers in each forward would be one more collective that a rank in trouble would have to join;
    # Buffers does it after the step. The option was renamed on the way from torch 2.6 to 2.13.
    _OPTIONS = inspect.signature(DistributedDataParallel.__init__).parameters
    _BUFFERS: ClassVar[dict[str, Any]] = {
        "forward_sync_buffers" if "forward_sync_buffers" in _OPTIONS else "broadcast_buffers": False
    }

    def __init__(self, module: torch.nn.Module, clock: Clock, config: SyncConfig) -> None:
        self.ready: Any = None
        self.traffic = Traffic(clock)
        self._clock, self._sent_as = clock, wire_dtype(config)
        self._launched: list[int] = []  # sizes of this step's buckets, in the order they were reduced
        self._device = next(module.parameters()).device
        self._dtype = next(module.parameters()).dtype
        self._roster, self._buffers = Roster(module), Buffers(module)
        with without_trace(module):
            _backward(module, self._device)
        self._searches = any(parameter.grad is None for parameter in self._roster.parameters)
        module.zero_grad(set_to_none=True)
        self.module: torch.nn.Module = DistributedDataParallel(
            module,
            device_ids=[self._device] if self._device.type == "cuda" else None,
            bucket_cap_mb=config.bucket_mb,
            find_unused_parameters=self._searches,
            **self._BUFFERS,
        )
        self.module.register_comm_hook(None, self._hook)
        for _ in range(2):  # DDP lays out its buckets anew after the first step
            self._launched.clear()
            with without_trace(self.module):
                _backward(self.module, self._device)
        self._sizes = list(self._launched)  # of a whole step
        self._launched.clear()
        self.traffic.take()
        self.module.zero_grad(set_to_none=True)

    def _hook(self, state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        if bucket.is_last():
            self.ready = self._clock.mark()
        flat = bucket.buffer()
        self._launched.append(flat.numel())
        sent = flat if self._sent_as in (None, flat.dtype) else flat.to(self._sent_as)
        collective = self.traffic.launched(f"bucket {bucket.index()}", sent)

        def summed(future: Any) -> torch.Tensor:
            self.traffic.finished(collective)
            total = future.value()[0]
            return total if total.dtype == flat.dtype else flat.copy_(total)

        return dist.all_reduce(sent, async_op=True).get_future().then(summed)

    def accumulate(self) -> AbstractContextManager[Any]:
        self._roster.check()
        return self.module.no_sync()  # type: ignore[operator]

    def synchronise(self) -> AbstractContextManager[Any]:
        self._roster.check()
        return nullcontext()

    def wait(self) -> None:
        """Backward has already waited for every bucket."""
        if self._launched != self._sizes:
            raise RunError(
                f"DDP reduced {len(self._launched)} of {len(self._sizes)} buckets: a parameter that had a gradient at "
                'the start has none in this step; use sync.kind = "bucketed", which needs no gradient of any'
            )
        self._end_step()

    def join(self) -> None:
        """Reduce zeros for the buckets that this rank's broken backward did not reach; DDP is not used again."""
        for size in self._sizes[len(self._launched) :]:
            dist.all_reduce(torch.zeros(size, dtype=self._sent_as or self._dtype, device=self._device))
        if self._searches and len(self._launched) < len(self._sizes):  # DDP also adds up who used what
            dist.all_reduce(torch.zeros(len(self._roster.parameters), dtype=torch.int32, device=self._device))
        self._end_step()

    def _end_step(self) -> None:
        self._launched.clear()
        self._buffers.share()


def _backward(module: torch.nn.Module, device: torch.device) -> None:
    """Of four tokens at weight 0: all that counts is which parameters it reaches, so any function of logits does."""
    tokens = torch.ones((1, 4), dtype=torch.int64, device=device)
    (module(input_ids=tokens, attention_mask=tokens).logits.sum() * 0.0).backward()
