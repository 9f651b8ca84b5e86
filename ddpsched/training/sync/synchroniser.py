"""The base of all synchronisers, and their parts: which parameters are added up, and a log of the collectives."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import compress
from typing import Any

import torch
import torch.distributed as dist

from ddpsched.config import SyncConfig
from ddpsched.errors import RunError
from ddpsched.training.clock import Clock

# in which dtype gradients are sent, by sync.precision of a config; None for the one that they are kept in
WIRE_DTYPES: dict[str, torch.dtype | None] = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class Collective:
    """One all-reduce, between two marks of this rank's clock; ``done`` is None until it has ended."""

    label: str
    num_bytes: int  # sent by this rank
    launched: Any
    done: Any = None


class CollectiveLog:
    """The collectives of one step. It also launches all-reduces itself, in place and asynchronously.

    ``dtype``: in which tensors are sent; None for each tensor's own. All ranks must
    add the same tensors in the same order: gloo and NCCL match collectives by their
    order alone, and a mismatch can go unnoticed.
    """

    def __init__(self, clock: Clock, dtype: torch.dtype | None = None) -> None:
        self._clock, self.dtype = clock, dtype
        self._pending: list[tuple[dist.Work, torch.Tensor, torch.Tensor, Collective]] = []
        self._log: list[Collective] = []
        self._largest: list[torch.Tensor] = []  # number of each tensor sent, by magnitude
        self.on_launch: Callable[[], object] = lambda: None

    def cast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return ``tensor`` in the dtype in which it is sent; the tensor itself where it has that already."""
        return tensor if self.dtype is None else tensor.to(self.dtype)

    def add(self, label: str, tensor: torch.Tensor) -> None:
        """Begin to replace ``tensor`` by its sum over ranks; it must not be touched before ``wait``."""
        sent = self.cast(tensor)
        collective = self.launched(label, sent)
        work = dist.all_reduce(sent, async_op=True)
        work.get_future().add_done_callback(lambda _: self.finished(collective))
        self._pending.append((work, tensor, sent, collective))

    def launched(self, label: str, sent: torch.Tensor) -> Collective:
        """Record a collective that begins now."""
        self._largest.append(torch.linalg.vector_norm(sent, torch.inf).float())
        self.on_launch()
        self._log.append(Collective(label, sent.nbytes, self._clock.mark()))
        return self._log[-1]

    def gathering(self, label: str, sent: torch.Tensor, work: dist.Work) -> None:
        """Record a collective that brings weights, no gradients, and was just begun."""
        self._log.append(Collective(label, sent.nbytes, self._clock.mark()))
        collective = self._log[-1]
        work.get_future().add_done_callback(lambda _: self.finished(collective))

    def finished(self, collective: Collective) -> None:
        """Record its end, unless that is recorded already."""
        if collective.done is None:
            collective.done = self._clock.mark()

    def wait(self) -> None:
        """Return when every sum is in place (on CUDA: when the stream will have them)."""
        pending, self._pending = self._pending, []
        for work, tensor, sent, collective in pending:
            work.wait()
            self.finished(collective)  # the callback may not have run yet
            if sent is not tensor:
                tensor.copy_(sent)

    def take(self) -> tuple[list[Collective], torch.Tensor | None]:
        """Return the step's collectives in the order of their launch, and the largest magnitude sent; empty the log.

        It is not finite where a number that this rank sent was not. None where nothing was sent.
        """
        log, largest = self._log, self._largest
        self._log, self._largest = [], []
        return log, torch.stack(largest).max() if largest else None


class Synchroniser:
    """The gradients of all ranks become their sum; the package's docstring says when each method is called.

    This base exchanges nothing: it serves a process whose gradient is the sum already.
    """

    needs_backward = False  # a rank without samples must run a backward on a synthetic one
    meets = False  # each micro-batch is a meeting of all ranks, so they need as many
    joins = True  # a rank whose step broke off can still take part in the collectives of the others

    def __init__(self, module: torch.nn.Module, clock: Clock, config: SyncConfig | None = None) -> None:
        self.module = module  # its forward is the one to call
        wire_dtype = WIRE_DTYPES[config.precision] if config else None
        self.log = CollectiveLog(clock, wire_dtype)  # the collectives of the step
        self.ready: Any = None  # mark: the last gradient of this rank was computed
        self.barrier: tuple[Any, Any] | None = None  # marks around a barrier before the collectives
        self._clock = clock

    def accumulate(self) -> AbstractContextManager[Any]:
        """Return a context whose backward keeps its gradients on this rank."""
        return self._backward(last=False)

    def synchronise(self) -> AbstractContextManager[Any]:
        """Return a context for the last backward of a step, which starts the exchange of gradients."""
        return self._backward(last=True)

    def trial(self) -> AbstractContextManager[Any]:
        """Return a context for a backward outside of steps, whose gradients are dropped."""
        return nullcontext()

    def wait(self) -> None:
        """Return when every parameter's ``grad`` is the sum over all ranks."""
        self.ready = self._clock.mark()

    def join(self) -> None:
        """Take part with zeros in the collectives that are left of a step that broke off on this rank."""

    def renew(self) -> None:
        """Be as before a step that broke off on some rank; all ranks call it, with their gradients dropped."""
        self.log.take()

    @contextmanager
    def _backward(self, last: bool) -> Iterator[None]:
        """Surround a backward; ``last``: the one whose gradients are exchanged."""
        yield


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
