"""The two messages that ranks exchange: fixed shape, int64, so that no rank can misread another.

*Offer*: ``version, epoch, step, cap, cost of 1 .. K samples``; the costs of a
rank's window, and how many samples of it the rank may be assigned.
*Vote*: ``version, step, plan digest, flags, count, longest sample, largest
micro-batch``; cast after backward and before the optimizer, so that all ranks
leave a step the same way.
"""

from collections.abc import Callable
from enum import IntFlag
from typing import Protocol

import numpy as np
import numpy.typing as npt

import ddpsched.errors as errors
from ddpsched.shortage import raise_limit

Messages = npt.NDArray[np.int64]
VERSION = 2


class Flag(IntFlag):
    """The reasons for which a rank votes against going on."""

    OK = 0
    OUT_OF_MEMORY = 1
    NON_FINITE = 2
    DISK_FULL = 4
    STOP = 8
    FAILED = 16
    SUM_NON_FINITE = 32  # though this rank's own share of it is finite


# which of several flags decides: what changes nothing else comes before what could be its consequence
GRAVEST = (Flag.FAILED, Flag.OUT_OF_MEMORY, Flag.NON_FINITE, Flag.DISK_FULL, Flag.SUM_NON_FINITE, Flag.STOP)


class Exchange(Protocol):
    """The exchange of messages between the ranks in this process (``ranks``) and the others."""

    @property
    def ranks(self) -> tuple[int, ...]: ...

    def offer(self, rows: Messages) -> Messages:
        """Gather the offers, (ranks here, width) -> (world_size, width); called by the planning thread."""

    def vote(self, rows: Messages) -> Messages:
        """Gather the votes, (ranks here, width) -> (world_size, width); called by the training thread."""

    def total(self, value: float) -> float:
        """Return the sum of every process's value."""

    def barrier(self) -> None:
        """Return when every process has called it."""

    def part(self, is_done: Callable[[], bool]) -> None:
        """Return, as the last barrier, when every process has called it, or their common work ``is_done``."""


class LocalExchange:
    """An exchange of a process that runs all ranks: their rows stacked are the table."""

    def __init__(self, world_size: int) -> None:
        self.ranks = tuple(range(world_size))

    def offer(self, rows: Messages) -> Messages:
        """Return the rows, which are all."""
        return rows

    def vote(self, rows: Messages) -> Messages:
        """Return the rows, which are all."""
        return rows

    def total(self, value: float) -> float:
        """Return the value, which is of all ranks."""
        return value

    def barrier(self) -> None:
        """Return at once."""

    def part(self, is_done: Callable[[], bool]) -> None:
        """Return at once."""


def offer_row(epoch: int, step: int, costs: Messages, cap: int, prefetch: int) -> Messages:
    """Return an offer, (4 + prefetch,). A window shorter than ``prefetch`` repeats its last cost beyond the cap."""
    row, end = np.empty(4 + prefetch, dtype=np.int64), 4 + len(costs)
    row[:4] = VERSION, epoch, step, min(cap, len(costs))
    row[4:end] = costs
    row[end:] = costs[-1] if len(costs) else 0
    return row


def read_offers(table: Messages, epoch: int, step: int) -> tuple[Messages, Messages]:
    """Return the gathered offers as ``costs (world_size, prefetch)`` and ``caps (world_size,)``.

    Raises PlanMismatch when a rank sends another version or is at another step.
    """
    expected = [VERSION, epoch, step]
    differs = table[:, :3] != expected
    if differs.any():
        ranks = np.flatnonzero(differs.any(axis=1)).tolist()
        raise errors.PlanMismatch(
            f"ranks {ranks} offer (version, epoch, step) = {table[ranks[0], :3].tolist()}, expected {expected}: "
            "they run another version or are out of step"
        )
    return table[:, 4:], table[:, 3]


def vote_row(step: int, digest: int, flags: Flag, count: int, longest: int, largest: int = 0) -> Messages:
    """Return a vote, (7,): the plan's ``digest``, this rank's ``flags``, its samples and the ``longest`` in tokens.

    ``largest``: what its largest micro-batch needs, in the unit of memory caps; it tells the others what did not fit.
    """
    return np.array([VERSION, step, digest, flags, count, longest, largest], dtype=np.int64)


def verdict(table: Messages) -> errors.DdpschedError | None:
    """Return None to go on, or the error that the gathered votes make every rank raise.

    Where ranks vote with several flags, the first of ``GRAVEST`` decides, and of ranks with it the first one is named.
    """
    step = int(table[0, 1])
    if not (table[:, :2] == table[0, :2]).all():
        return errors.PlanMismatch(f"ranks vote on different steps or versions: {table[:, :2].tolist()}")
    if odd := differing(table):
        return errors.PlanMismatch(
            f"step {step}: ranks {odd} hold another plan than the rest; no weights were changed. "
            "All ranks need the same config, data and package versions"
        )
    for flag in GRAVEST:
        raised = np.flatnonzero(table[:, 3] & flag).tolist()
        if raised:
            return _objection(flag, raised, step, table)
    return None


def differing(table: Messages) -> list[int]:
    """Return the ranks whose plan is not the one that most ranks hold; of as many, rank 0's counts."""
    digests = table[:, 2].tolist()
    most = max(digests, key=lambda digest: (digests.count(digest), digest == digests[0]))
    return [rank for rank, digest in enumerate(digests) if digest != most]


def _objection(flag: Flag, ranks: list[int], step: int, table: Messages) -> errors.RunError:
    rank = ranks[0]
    count, longest = table[rank, 4:6].tolist()
    if flag is Flag.OUT_OF_MEMORY:
        return errors.StepOutOfMemory(
            f"rank {rank} ran out of memory in step {step} with {count} samples, the longest {longest} tokens; no "
            f"weights were changed: {raise_limit()}lower global_batch, data.max_length or memory.budget_bytes, or cap "
            "micro-batches by memory.path (a calibration) or memory.probe = true, not with compile.kind = 'static'",
            tuple(ranks),
        )
    if flag is Flag.NON_FINITE:
        return errors.NonFiniteError(
            f"rank {rank}: loss or gradient is NaN or infinite in step {step} ({count} samples, longest {longest} "
            "tokens); no weights were changed. Lower train.learning_rate, or check the data of that step"
        )
    if flag is Flag.SUM_NON_FINITE:
        return errors.NonFiniteError(
            f"step {step}: the gradient is NaN or infinite though every rank's loss and own gradient are finite; no "
            "weights were changed. Lower train.learning_rate, or check the data of that step"
        )
    if flag is Flag.DISK_FULL:
        return errors.RunError(
            f"rank {rank} could not write its records before step {step}: is the disk full? Free some, or set "
            "outputs=... elsewhere"
        )
    if flag is Flag.STOP:
        return errors.RunStopped(
            f"a signal asked rank {rank} to stop; all ranks left after step {step}, weights unchanged since"
        )
    return errors.RankFailure(f"rank {rank} failed in step {step}; its log says why")
