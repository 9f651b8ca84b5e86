"""Gradient synchronisers, one a file: how the gradients of all ranks become their average.

A synchroniser holds the ``module`` to call forward on and has four methods:

``accumulate()``   a context in which backward keeps its gradients local;
``ready_mark()``   when this rank's last gradient was ready (a mark of its clock);
``synchronise()``  after the last backward: return with all ranks' average in place;
``join()``         take part in the step's collectives with zeros, from wherever
                   this rank's own backward broke off.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from ddpsched.training.clock import Clock
from ddpsched.training.sync.ddp import DdpSync
from ddpsched.training.sync.naive import NaiveSync


class Synchroniser(Protocol):
    """See the package's docstring."""

    module: torch.nn.Module
    needs_backward: bool  # a rank without samples must still run a backward to take part

    def accumulate(self) -> AbstractContextManager[Any]: ...

    def synchronise(self) -> None: ...

    def ready_mark(self) -> Any: ...

    def join(self) -> None: ...


SYNCS: dict[str, Callable[[torch.nn.Module, Clock], Synchroniser]] = {"ddp": DdpSync, "naive": NaiveSync}
