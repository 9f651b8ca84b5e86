"""ddp: torch's DistributedDataParallel, its buckets reduced while backward still runs."""

import gc
import inspect
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsched.config import SyncConfig
from ddpsched.errors import RunError
from ddpsched.training.clock import Clock
from ddpsched.training.collate import without_trace
from ddpsched.training.sync.synchroniser import Buffers, ParameterRegistry, Synchroniser


class DdpSync(Synchroniser):
    """DDP with a communication hook that adds instead of averaging, and times when a bucket was ready and reduced.

    Wall time to the end of backward is the same on every rank, since the last
    all-reduce waits for the slowest; only the hook's mark tells a rank's compute.
    """

    needs_backward = True

    def __init__(self, module: torch.nn.Module, clock: Clock, config: SyncConfig) -> None:
        super().__init__(module, clock, config)
        self._registry, self._buffers = ParameterRegistry(module), Buffers(module)
        self._launched: list[int] = []  # sizes of this step's buckets, in the order they were reduced
        parameter = next(module.parameters())
        self._device, self._dtype = parameter.device, self.log.dtype or parameter.dtype
        self._backward_of_nothing()
        self._searches = any(parameter.grad is None for parameter in self._registry.parameters)
        module.zero_grad(set_to_none=True)
        # A broadcast of buffers in each forward would be one more collective that a rank whose step broke off would
        # have to join; Buffers does it after the step. The option was renamed on the way from torch 2.6 to 2.13.
        renamed = "forward_sync_buffers" in inspect.signature(DistributedDataParallel.__init__).parameters
        self._options: dict[str, Any] = {"forward_sync_buffers" if renamed else "broadcast_buffers": False}
        self._options |= {"bucket_cap_mb": config.bucket_mb, "find_unused_parameters": self._searches}
        self._options["device_ids"] = [self._device] if self._device.type == "cuda" else None
        self._wrap(module)

    def _wrap(self, module: torch.nn.Module) -> None:
        """Let DDP lay out its buckets for a module; a collective, like each backward in it."""
        with self._first_bucket():
            self.module = DistributedDataParallel(module, **self._options)
        self.module.register_comm_hook(None, self._hook)
        for _ in range(2):  # DDP lays out its buckets anew after the first step
            self._launched.clear()
            self._backward_of_nothing()
        self._sizes = list(self._launched)  # of a whole step
        self._launched.clear()
        self.log.take()
        self.module.zero_grad(set_to_none=True)

    def renew(self) -> None:
        """Wrap the module again: DDP does not recover from a backward that broke off."""
        module = self.module.module
        assert isinstance(module, torch.nn.Module)
        self.module = module  # so that the old one, with its buckets and hooks, is gone before the new one is made
        gc.collect()
        self._wrap(module)

    def _hook(self, state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        if bucket.is_last():
            self.ready = self._clock.mark()
        flat = bucket.buffer()
        self._launched.append(flat.numel())
        sent = self.log.cast(flat)
        collective = self.log.launched(f"bucket {bucket.index()}", sent)

        def summed(future: Any) -> torch.Tensor:
            self.log.finished(collective)
            total = future.value()[0]
            return total if total.dtype == flat.dtype else flat.copy_(total)

        return dist.all_reduce(sent, async_op=True).get_future().then(summed)

    @contextmanager
    def _backward(self, last: bool) -> Iterator[None]:
        self._registry.check()
        with nullcontext() if last else self.module.no_sync():  # type: ignore[operator]
            yield

    @contextmanager
    def trial(self) -> Iterator[None]:
        with self.module.no_sync(), self._first_bucket():  # type: ignore[operator]
            yield

    @contextmanager
    def _first_bucket(self) -> Iterator[None]:
        """Let DDP's first bucket, of 1 MiB, be as small as the others, as its splitter of compiled models demands."""
        usual = dist._DEFAULT_FIRST_BUCKET_BYTES
        dist._DEFAULT_FIRST_BUCKET_BYTES = min(usual, int(self._options["bucket_cap_mb"] * 2**20))
        try:
            yield
        finally:
            dist._DEFAULT_FIRST_BUCKET_BYTES = usual

    def wait(self) -> None:
        """Check that backward, which has waited for all buckets, has reduced all. Raises RunError where not."""
        if self._launched != self._sizes:
            raise RunError(
                f"DDP reduced {len(self._launched)} of {len(self._sizes)} buckets: a parameter that had a gradient at "
                'the start has none in this step; use sync.kind = "bucketed", which needs no gradient of any'
            )
        self._end_step()

    def join(self) -> None:
        """Reduce zeros for the buckets that this rank's broken backward did not reach; DDP is not used again."""
        for size in self._sizes[len(self._launched) :]:
            dist.all_reduce(torch.zeros(size, dtype=self._dtype, device=self._device))
        if self._searches and len(self._launched) < len(self._sizes):  # DDP also adds up which parameters were used
            dist.all_reduce(torch.zeros(len(self._registry.parameters), dtype=torch.int32, device=self._device))
        self._end_step()

    def _end_step(self) -> None:
        self._launched.clear()
        self._buffers.share()

    def _backward_of_nothing(self) -> None:
        """Run a backward of four tokens at weight 0: it shows which parameters a loss of the logits reaches."""
        tokens = torch.ones((1, 4), dtype=torch.int64, device=self._device)
        with without_trace(self.module):
            (self.module(input_ids=tokens, attention_mask=tokens).logits.sum() * 0.0).backward()
