"""The two messages that ranks exchange: fixed shape, int64, so that no rank can misread another.

*Offer*: ``version, epoch, step, cap, cost of 1 .. K samples``; the costs of a
rank's window, and how many samples of it the rank may be assigned.
*Vote*: ``version, step, plan digest, flags, count, longest sample``; cast after
backward and before the optimizer, so that all ranks leave a step the same way.
"""

from collections.abc import Callable
from enum import IntFlag
from typing import Protocol

import numpy as np
import numpy.typing as npt

import ddpsched.errors as errors

Messages = npt.NDArray[np.int64]
VERSION = 1


class Flag(IntFlag):
    """The reasons for which a rank votes against going on."""

    OK = 0
    OUT_OF_MEMORY = 1
    NON_FINITE = 2
    DISK_FULL = 4
    STOP = 8
    FAILED = 16


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


def vote_row(step: int, digest: int, flag: Flag, count: int, longest: int) -> Messages:
    """Return a vote, (6,): the plan's ``digest``, this rank's ``flag``, its samples and the ``longest`` in tokens."""
    return np.array([VERSION, step, digest, flag, count, longest], dtype=np.int64)


def verdict(table: Messages) -> errors.DdpschedError | None:
    """Return None to go on, or the error that the gathered votes make every rank raise."""
    step = int(table[0, 1])
    if not (table[:, :2] == table[0, :2]).all():
        return errors.PlanMismatch(f"ranks vote on different steps or versions: {table[:, :2].tolist()}")
    if not (table[:, 2] == table[0, 2]).all():
        values, votes = np.unique(table[:, 2], return_counts=True)
        odd = np.flatnonzero(table[:, 2] != values[votes.argmax()]).tolist()
        return errors.PlanMismatch(
            f"step {step}: ranks {odd} hold another plan than the rest; no weights were changed. "
            "All ranks need the same config, data and package versions"
        )
    for rank, (_, _, _, flags, count, longest) in enumerate(table.tolist()):
        if flags:
            return _objection(Flag(flags), rank, step, count, longest)
    return None


def _objection(flag: Flag, rank: int, step: int, count: int, longest: int) -> errors.RunError:
    if flag & Flag.OUT_OF_MEMORY:
        return errors.StepOutOfMemory(
            f"rank {rank} ran out of memory in step {step} with {count} samples, the longest {longest} tokens; no "
            "weights were changed. Lower global_batch, data.max_length or memory.budget_bytes, or cap micro-batches "
            "by memory.path (a calibration) or memory.probe = true"
        )
    if flag & Flag.NON_FINITE:
        return errors.NonFiniteError(
            f"rank {rank}: loss or gradient is NaN or infinite in step {step} ({count} samples, longest {longest} "
            "tokens); no weights were changed. Lower train.learning_rate, or check the data of that step"
        )
    if flag & Flag.DISK_FULL:
        return errors.RunError(f"rank {rank} could not write its records before step {step}: is the disk full?")
    if flag & Flag.STOP:
        return errors.RunStopped(
            f"a signal asked rank {rank} to stop; all ranks left after step {step}, weights unchanged since"
        )
    return errors.RankFailure(f"rank {rank} failed in step {step}; its log says why")
