"""Which parameters are synchronised, in which order, and that they stay the same."""

import torch
import torch.distributed as dist

from ddpsched.errors import RunError


class Roster:
    """The parameters that require a gradient, last registered first, about as backward makes them ready.

    The order is the same on every rank, whichever parameters a rank's samples use:
    collectives must be launched in one order everywhere. A shared parameter occurs
    once. ``names`` and ``parameters`` belong together.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        named = _trained(module)
        self.names = [name for name, _ in named]
        self.parameters = [parameter for _, parameter in named]
        self._shapes = [parameter.shape for parameter in self.parameters]
        start_alike(module)

    def check(self) -> None:
        """Raises RunError, which names the parameter that joined, left or changed its shape since the start."""
        now = _trained(self._module)
        for (name, parameter), known, shape in zip(now, self.parameters, self._shapes, strict=False):
            if parameter is known and parameter.shape != shape:
                raise RunError(
                    f"parameter {name} had shape {tuple(shape)} when the ranks began and has {tuple(parameter.shape)} "
                    "now; gradients of other shapes cannot be added over ranks: build the synchroniser after the change"
                )
        if [id(parameter) for _, parameter in now] != [id(parameter) for parameter in self.parameters]:
            old, new = {id(p): n for n, p in zip(self.names, self.parameters, strict=True)}, dict(now)
            joined = [name for name, p in new.items() if id(p) not in old]
            left = [name for name in self.names if name not in new]
            raise RunError(
                f"the parameters that require a gradient are not those that the ranks began with (joined: "
                f"{', '.join(joined) or 'none'}; left: {', '.join(left) or 'none'}): build the synchroniser after the "
                "last parameter has joined, and freeze parameters before"
            )

    def check_gradient(self, index: int, gradient: torch.Tensor) -> None:
        """Raises RunError for a gradient that cannot be added over ranks: a sparse one, or one of another shape."""
        if not gradient.is_sparse and gradient.shape == self._shapes[index]:
            return
        self.check()
        raise RunError(
            f"parameter {self.names[index]} has a gradient of layout {gradient.layout} and shape "
            f"{tuple(gradient.shape)}; dense ones of shape {tuple(self._shapes[index])} can be added over ranks "
            "(an Embedding with sparse=True needs sparse=False)"
        )


def start_alike(module: torch.nn.Module) -> None:
    """All ranks take rank 0's parameters and buffers."""
    for tensor in (*module.parameters(), *module.buffers()):
        dist.broadcast(tensor.data, src=0)


def _trained(module: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    return [(name, p) for name, p in module.named_parameters() if p.requires_grad][::-1]


class Buffers:
    """Buffers that forward changes (running statistics): after each step every rank has rank 0's.

    Which those are is found in the first step that any rank runs a sample in; constants, which most
    buffers of language models are, are not sent again. DDP sends them before each
    forward, where a rank in trouble could not join.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._names = [name for name, _ in module.named_buffers()]
        self._before = {name: buffer.clone() for name, buffer in module.named_buffers()}
        self._changing: list[str] | None = None

    def share(self) -> None:
        """One call a step on every rank."""
        if not self._names:
            return
        if self._changing is None:
            device = self._module.get_buffer(self._names[0]).device
            # by content: batch normalisation changes its statistics without counting up their version
            changed = [not torch.equal(self._module.get_buffer(name), self._before[name]) for name in self._names]
            self._before.clear()
            anywhere = torch.tensor(changed, dtype=torch.int64, device=device)
            dist.all_reduce(anywhere, dist.ReduceOp.MAX)
            self._changing = [name for name, yes in zip(self._names, anywhere.tolist(), strict=True) if yes]
        for name in self._changing:
            dist.broadcast(self._module.get_buffer(name), src=0)
