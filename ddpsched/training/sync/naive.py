"""naive: one all-reduce of the whole gradient, after backward."""

import functools

import torch
import torch.distributed as dist

from ddpsched.config import SyncConfig
from ddpsched.training.clock import Clock
from ddpsched.training.sync.synchroniser import Buffers, ParameterRegistry, Synchroniser


class NaiveSync(Synchroniser):
    """Flatten all gradients, followed by a 1 for each parameter that has one and a 0 for each other; add over ranks.

    With ``config.barrier`` the ranks first wait for each other, so that waiting for
    the slowest and moving the gradient are timed apart.
    """

    def __init__(self, module: torch.nn.Module, clock: Clock, config: SyncConfig) -> None:
        super().__init__(module, clock, config)
        self._waits_first = config.barrier
        self._registry, self._buffers = ParameterRegistry(module), Buffers(module)
        self._parameters = self._registry.parameters
        self._sizes = [*(p.numel() for p in self._parameters), len(self._parameters)]
        self._dtype = functools.reduce(torch.promote_types, (p.dtype for p in self._parameters), torch.float32)

    def wait(self) -> None:
        """Add the gradients of all ranks, and return when every parameter has its sum."""
        self._registry.check()
        self.ready = self._clock.mark()
        for index, parameter in enumerate(self._parameters):
            if parameter.grad is not None:
                self._registry.check_gradient(index, parameter.grad)
        has = [p.grad is not None for p in self._parameters]
        pieces = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
        used = torch.tensor(has, dtype=torch.float32, device=pieces[0].device)
        flat = torch.cat([*(piece.reshape(-1) for piece in pieces), used])  # at least float32, as `used` is
        self._reduce(flat)
        *sums, used = flat.split(self._sizes)
        anywhere = has if all(has) else (used > 0).tolist()  # a parameter used on this rank is used on some rank
        for parameter, gradient, is_used in zip(self._parameters, sums, anywhere, strict=True):
            parameter.grad = gradient.view_as(parameter).to(parameter.dtype) if is_used else None

    def join(self) -> None:
        """Take part with zeros in this step's all-reduce."""
        self._reduce(torch.zeros(sum(self._sizes), dtype=self._dtype, device=self._parameters[0].device))
        self.module.zero_grad(set_to_none=True)

    def _reduce(self, flat: torch.Tensor) -> None:
        if self._waits_first:
            begin = self._clock.mark()
            dist.barrier()
            self.barrier = begin, self._clock.mark()
        self.log.add("all gradients", flat)
        self.log.wait()
        self._buffers.share()
