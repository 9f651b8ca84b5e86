"""Which parameters are synchronised, in which order, and a check that they stay the same."""

from itertools import compress

import torch
import torch.distributed as dist

from ddpsched.errors import RunError


class ParameterRegistry:
    """The parameters that require a gradient, last registered first, about as backward makes them ready.

    The order is the same on every rank, whichever parameters a rank's samples use:
    collectives must be launched in one order everywhere. A shared parameter occurs
    once. ``names`` and ``parameters`` belong together. Building one is a collective:
    all ranks take rank 0's weights and buffers.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self.names = [name for name, _ in _trained(module)]
        self.parameters = [parameter for _, parameter in _trained(module)]
        self._shapes = [parameter.shape for parameter in self.parameters]
        broadcast_from_rank_0(module)

    def check(self) -> None:
        """Raise RunError, naming the parameter, where one joined, left or changed its shape since the start."""
        now = _trained(self._module)
        for (name, parameter), known, shape in zip(now, self.parameters, self._shapes, strict=False):
            if parameter is known and parameter.shape != shape:
                raise RunError(
                    f"parameter {name} had shape {tuple(shape)} when the ranks began and has {tuple(parameter.shape)} "
                    "now; gradients of other shapes cannot be added over ranks: build the synchroniser after the change"
                )
        if [id(parameter) for _, parameter in now] != [id(parameter) for parameter in self.parameters]:
            known_ids, names = {id(p) for p in self.parameters}, {name for name, _ in now}
            joined = [name for name, p in now if id(p) not in known_ids]
            left = [name for name in self.names if name not in names]
            raise RunError(
                f"the parameters that require a gradient are not those that the ranks began with (joined: "
                f"{', '.join(joined) or 'none'}; left: {', '.join(left) or 'none'}): build the synchroniser after the "
                "last parameter has joined, and freeze parameters before"
            )

    def check_gradient(self, index: int, gradient: torch.Tensor) -> None:
        """Raise RunError for a gradient that cannot be added over ranks: a sparse one, or one of another shape."""
        if not gradient.is_sparse and gradient.shape == self._shapes[index]:
            return
        self.check()
        raise RunError(
            f"parameter {self.names[index]} has a gradient of layout {gradient.layout} and shape "
            f"{tuple(gradient.shape)}; dense ones of shape {tuple(self._shapes[index])} can be added over ranks "
            "(an Embedding with sparse=True needs sparse=False)"
        )


def broadcast_from_rank_0(module: torch.nn.Module) -> None:
    """Overwrite the parameters and buffers of all ranks with those of rank 0."""
    for tensor in (*module.parameters(), *module.buffers()):
        dist.broadcast(tensor.data, src=0)


def _trained(module: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    return [(name, p) for name, p in module.named_parameters() if p.requires_grad][::-1]


class Buffers:
    """Buffers that forward changes (running statistics): after each step every rank has rank 0's.

    The first step tells which ones change on any rank; constants, which most buffers
    of language models are, are not sent again. DDP sends them before each forward,
    where a rank whose step broke off could not take part.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._before = {name: buffer.clone() for name, buffer in module.named_buffers()}  # empty after the first step
        self._changing: list[str] = []

    def share(self) -> None:
        """Broadcast rank 0's changing buffers; to be called once a step on every rank."""
        if self._before:
            # by content: batch normalisation changes its statistics without counting up their version
            changed = [not torch.equal(self._module.get_buffer(name), old) for name, old in self._before.items()]
            device = next(iter(self._before.values())).device
            anywhere = torch.tensor(changed, dtype=torch.int64, device=device)
            dist.all_reduce(anywhere, dist.ReduceOp.MAX)
            self._changing = list(compress(self._before, anywhere.tolist()))
            self._before.clear()
        for name in self._changing:
            dist.broadcast(self._module.get_buffer(name), src=0)
