"""Keeper: it commits each step to the ledger, and writes a checkpoint every so many steps while the run goes on.

The training thread copies the tensors, which takes no longer than the copy; another thread writes and syncs them.
"""

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Protocol

import numpy as np

from ddpsched.config import RunConfig
from ddpsched.costs.rank_speed import Speed
from ddpsched.errors import RankFailure
from ddpsched.exchange import Exchange
from ddpsched.own_folder import remove
from ddpsched.records import StepRecord, write_json
from ddpsched.recovery.checkpoints import Checkpoints
from ddpsched.recovery.ledger import Head, Ledger
from ddpsched.recovery.start import Start
from ddpsched.recovery.synced_file import sync
from ddpsched.step_plan import StepPlan

LEAVING_S = 2.0  # that a run which ends waits for the other ranks' part of a checkpoint


class Snapshot(Protocol):
    """Tensors of this process, as ``ddpsched.training.state.Snapshot`` has them."""

    @property
    def is_shared(self) -> bool: ...

    def take(self) -> None: ...

    def write(self, folder: Path, share: int, shares: int) -> None: ...


class Keeper:
    """The ledger and the checkpoints of a run, in one of its processes.

    ``snapshot``: makes the copies of this process, where checkpoints are wanted. ``rank``, ``exchange``: this
    process's; rank 0 writes the ledger and what is the same on all ranks. ``speeds``: measured ones of the ranks here.
    ``start``: where the run begins.
    """

    def __init__(
        self,
        config: RunConfig,
        rank: int,
        exchange: Exchange,
        snapshot: Snapshot | None,
        speeds: Sequence[Speed],
        start: Start,
    ) -> None:
        self._start = start
        self._config, self._rank, self._exchange = config, rank, exchange
        self._snapshot, self._speeds = snapshot, speeds
        self._every = config.train.checkpoint_every
        self._checkpoints = Checkpoints(start.folder, config.train.keep)
        self._ledger = Ledger(start.folder, start.head) if rank == 0 else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None
        self._last: StepPlan | None = None  # the last step here
        self._processes = config.world_size if config.executor.kind == "distributed" else 1
        self._committed = start.position.step
        self._closed_s = math.inf

    @property
    def head(self) -> Head | None:
        """The end of the ledger so far; None on a rank that does not write it."""
        return None if self._ledger is None else self._ledger.head

    def commit(self, plan: StepPlan, records: Sequence[StepRecord]) -> None:
        """Commit a step to the ledger. Raises OSError, and the error that ended the writing of the last checkpoint."""
        if self._ledger is not None:
            self._ledger.commit(plan, skipped=records[0].mode != "simulated" and records[0].lr is None)
        self._committed = plan.step + 1
        if self._writing is not None and self._writing.done():
            writing, self._writing = self._writing, None
            writing.result()

    def checkpoint(self, plan: StepPlan, rooms: Mapping[int, int]) -> None:
        """Begin a checkpoint after a step, where one is due; all ranks call it.

        ``rooms``: the memory left to ranks that ran out of it, by rank.
        """
        self._last = plan
        if self._every and (plan.step + 1) % self._every == 0:
            self._begin(plan, rooms)

    def stopped(self, rooms: Mapping[int, int]) -> None:
        """Write a checkpoint after the last step, so that it is not done again; all ranks call it once they agree.

        Raises the error that ended its writing.
        """
        if self._every and self._last is not None and (self._last.step + 1) % self._every:
            self._begin(self._last, rooms)
        self.finish()

    def finish(self) -> None:
        """Return when the last checkpoint is written. Raises the error that ended its writing."""
        if self._writing is not None:
            self._writing.result()

    def close(self) -> None:
        """Close the ledger, as soon as no checkpoint is being written."""
        self._closed_s = monotonic()
        self._thread.shutdown()
        if self._ledger is not None:
            self._ledger.close()

    def _begin(self, plan: StepPlan, rooms: Mapping[int, int]) -> None:
        assert self._snapshot is not None
        assert plan.after is not None, f"policy {self._config.policy.kind}: no position after step {plan.step}"
        speeds = _gathered(self._speeds, self._exchange)
        if self._writing is not None and self._writing.exception() is not None:  # it waits: the copies are in use
            return  # the next commit raises it, where all ranks learn of it
        head = self._ledger.head if self._ledger is not None else Head()
        if self._committed != plan.step + 1:  # its disk is full, and the run about to end
            return
        shares = self._processes if self._snapshot.is_shared else 1
        if self._rank < shares:
            self._snapshot.take()
        state = {
            "config": self._start.identity,
            "world_size": self._config.world_size,
            "batch_ranks": self._start.batch_ranks or self._config.world_size,
            "position": plan.after.as_packed(),
            "ledger": list(head),
            "speeds": speeds,
            "rooms": [rooms.get(rank) for rank in range(self._config.world_size)] if rooms else None,
        }
        self._writing = self._thread.submit(self._write, plan.step + 1, shares, state)

    def _write(self, step: int, shares: int, state: Mapping[str, Any]) -> None:
        aside = self._checkpoints.begin(step)
        try:
            self._write_into(aside, step, shares, state)
        except OSError:
            if self._processes == 1:  # else other ranks may still be writing their shares
                remove(aside)
            raise

    def _write_into(self, aside: Path, step: int, shares: int, state: Mapping[str, Any]) -> None:
        assert self._snapshot is not None
        sync(self._start.folder / f"records-rank{self._rank}.jsonl")  # without which the checkpoint would not count
        if self._rank < shares:
            self._snapshot.write(aside, self._rank, shares)
        if self._rank:
            write_json(aside / _share(self._rank), {})
            return
        deadline = monotonic() + self._config.executor.timeout_s
        while missing := [rank for rank in range(1, self._processes) if not (aside / _share(rank)).exists()]:
            if monotonic() > min(deadline, self._closed_s + LEAVING_S):
                waited = f"{self._config.executor.timeout_s:.0f} s"
                raise RankFailure(f"rank {missing[0]} did not write its share of {aside.name} within {waited}")
            sleep(0.02)
        assert self._ledger is not None
        self._ledger.sync()
        self._checkpoints.commit(step, state)


def _gathered(speeds: Sequence[Speed], exchange: Exchange) -> list[list[float]] | None:
    """Return what each rank's speed was measured from; None where none is measured."""
    if not speeds:
        return None
    rows = np.array([speed.recent for speed in speeds], dtype=np.float64)
    return exchange.vote(rows.view(np.int64)).view(np.float64).tolist()


def _share(rank: int) -> str:
    return f"rank-{rank:05d}.json"
