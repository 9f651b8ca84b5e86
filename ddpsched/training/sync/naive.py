"""naive: one all-reduce of the whole gradient, after backward."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist

from ddpsched.training.clock import Clock


class NaiveSync:
    """Flatten every gradient (a missing one counts as zero), add over ranks, divide by their number."""

    needs_backward = False

    def __init__(self, module: torch.nn.Module, clock: Clock) -> None:
        self.module = module
        self._clock = clock
        self._ready: Any = None
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        for tensor in (*module.parameters(), *module.buffers()):  # all ranks start as rank 0
            dist.broadcast(tensor.data, src=0)

    def accumulate(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def synchronise(self) -> None:
        self._ready = self._clock.mark()
        self._reduce([torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters])

    def ready_mark(self) -> Any:
        return self._ready

    def join(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None
        self._reduce([torch.zeros_like(p) for p in self._parameters])

    def _reduce(self, gradients: list[torch.Tensor]) -> None:
        flat = torch.cat([g.reshape(-1) for g in gradients])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        pieces = flat.split([g.numel() for g in gradients])
        for parameter, piece in zip(self._parameters, pieces, strict=True):
            parameter.grad = piece.view_as(parameter)
