"""naive: one all-reduce of the whole gradient, after backward."""

import functools
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist

from ddpsched.config import SyncConfig
from ddpsched.training.clock import Clock
from ddpsched.training.sync.collective_log import Traffic, wire_dtype
from ddpsched.training.sync.parameter_registry import Buffers, Roster


class NaiveSync:
    """Flatten every gradient, and behind them who has one (1) and who has none (0); add over ranks.

    With ``config.barrier`` the ranks first wait for each other, so that waiting for
    the slowest and moving the gradient are timed apart.
    """

    needs_backward, joins = False, True

    def __init__(self, module: torch.nn.Module, clock: Clock, config: SyncConfig) -> None:
        self.module = module
        self.ready: Any = None
        self.barrier: tuple[Any, Any] | None = None
        self._clock, self._waits_first = clock, config.barrier
        self._roster, self._buffers = Roster(module), Buffers(module)
        self._sizes = [*(p.numel() for p in self._roster.parameters), len(self._roster.parameters)]
        self._dtype = functools.reduce(torch.promote_types, (p.dtype for p in self._roster.parameters), torch.float32)
        self.traffic = Traffic(clock, wire_dtype(config))

    def accumulate(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def synchronise(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def wait(self) -> None:
        self._roster.check()
        self.ready = self._clock.mark()
        parameters = self._roster.parameters
        for index, parameter in enumerate(parameters):
            if parameter.grad is not None:
                self._roster.check_gradient(index, parameter.grad)
        has = [p.grad is not None for p in parameters]
        pieces = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        used = torch.tensor(has, dtype=torch.float32, device=pieces[0].device)
        flat = torch.cat([*(piece.reshape(-1) for piece in pieces), used])  # at least float32, as `used` is
        self._reduce(flat)
        *sums, used = flat.split(self._sizes)
        anywhere = has if all(has) else (used > 0).tolist()  # what this rank has, all ranks have
        for parameter, gradient, somewhere in zip(parameters, sums, anywhere, strict=True):
            parameter.grad = gradient.view_as(parameter).to(parameter.dtype) if somewhere else None

    def join(self) -> None:
        self._reduce(torch.zeros(sum(self._sizes), dtype=self._dtype, device=self._roster.parameters[0].device))
        self.module.zero_grad(set_to_none=True)

    def _reduce(self, flat: torch.Tensor) -> None:
        if self._waits_first:
            begin = self._clock.mark()
            dist.barrier()
            self.barrier = begin, self._clock.mark()
        self.traffic.add("all gradients", flat)
        self.traffic.wait()
        self._buffers.share()
