"""Gradient synchronisers, one a file: how the gradients of all ranks become their sum.

With each micro-batch's summed loss divided by the global count, B, that sum is the
gradient of the mean over the global batch. A step of a rank:

``accumulate()``   a context: the backward in it keeps its gradients local;
``synchronise()``  a context: the one backward in it, the last of the step, sets the
                   gradients under way (naive waits with that);
``wait()``         return when every parameter's ``grad`` is the sum over all ranks;
                   a rank that ran no backward joins here, with zeros;
``join()``         instead of ``wait``, where this rank's step broke off: take part in
                   the collectives that are left with zeros (if ``joins``).

A parameter that no rank used keeps ``grad = None``; one that some rank used counts
as zero on the others. A shared parameter is reduced once. Buffers that forward
changes are rank 0's on every rank after a step.

::

    naive.py                one all-reduce after backward
    overlap.py              one a parameter, while backward runs
    bucketed.py             flat buckets, while backward fills the next
    ddp.py                  torch's DistributedDataParallel
    fsdp.py                 torch's fully_shard
    parameter_registry.py   which parameters are synchronised, in which order
    collective_log.py       a step's collectives: launched, stamped, waited for
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from ddpsched.config import SyncConfig
from ddpsched.training.clock import Clock
from ddpsched.training.sync.bucketed import BucketedSync
from ddpsched.training.sync.collective_log import Traffic
from ddpsched.training.sync.ddp import DdpSync
from ddpsched.training.sync.fsdp import FsdpSync
from ddpsched.training.sync.naive import NaiveSync
from ddpsched.training.sync.overlap import OverlapSync


class Synchroniser(Protocol):
    """See the package's docstring."""

    module: torch.nn.Module  # whose forward is to be called
    traffic: Traffic  # the collectives of the step
    ready: Any  # mark: this rank's last gradient was there

    @property
    def barrier(self) -> tuple[Any, Any] | None: ...  # marks around one before the collectives

    @property
    def needs_backward(self) -> bool: ...  # a rank without samples must run a backward on a synthetic one

    @property
    def joins(self) -> bool: ...

    def accumulate(self) -> AbstractContextManager[Any]: ...

    def synchronise(self) -> AbstractContextManager[Any]: ...

    def wait(self) -> None: ...

    def join(self) -> None: ...


SYNCS: dict[str, Callable[[torch.nn.Module, Clock, SyncConfig], Synchroniser]] = {
    "naive": NaiveSync,
    "overlap": OverlapSync,
    "bucketed": BucketedSync,
    "ddp": DdpSync,
    "fsdp": FsdpSync,
}
