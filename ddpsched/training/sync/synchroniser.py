"""The base of all synchronisers: what a step of a rank calls, with the parts that they share."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from ddpsched.config import SyncConfig
from ddpsched.training.clock import Clock
from ddpsched.training.sync.collective_log import WIRE_DTYPES, CollectiveLog


class Synchroniser:
    """The gradients of all ranks become their sum; the package's docstring says when each method is called.

    This base exchanges nothing: it serves a process whose gradient is the sum already.
    """

    needs_backward = False  # a rank without samples must run a backward on a synthetic one
    joins = True  # a rank whose step broke off can still take part in the collectives of the others

    def __init__(self, module: torch.nn.Module, clock: Clock, config: SyncConfig | None = None) -> None:
        self.module = module  # its forward is the one to call
        self.log = CollectiveLog(
            clock, WIRE_DTYPES[config.precision] if config else None
        )  # the collectives of the step
        self.ready: Any = None  # mark: the last gradient of this rank was computed
        self.barrier: tuple[Any, Any] | None = None  # marks around a barrier before the collectives
        self._clock = clock

    def accumulate(self) -> AbstractContextManager[Any]:
        """Return a context whose backward keeps its gradients on this rank."""
        return self._backward(last=False)

    def synchronise(self) -> AbstractContextManager[Any]:
        """Return a context for the last backward of a step, which starts the exchange of gradients."""
        return self._backward(last=True)

    def wait(self) -> None:
        """Return when every parameter's ``grad`` is the sum over all ranks."""
        self.ready = self._clock.mark()

    def join(self) -> None:
        """Take part with zeros in the collectives that are left of a step that broke off on this rank."""

    @contextmanager
    def _backward(self, last: bool) -> Iterator[None]:
        """Surround a backward; ``last``: the one whose gradients are exchanged."""
        yield
