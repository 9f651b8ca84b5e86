"""Keeper: it commits each step to the ledger, and writes a checkpoint every so many steps while the run goes on.

The training thread copies the tensors, which takes no longer than the copy; another thread writes and syncs them.
"""

import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Protocol

import numpy as np

from ddpsched.config import RunConfig
from ddpsched.costs.rank_speed import Speed
from ddpsched.errors import ConfigError, RankFailure
from ddpsched.exchange import Exchange
from ddpsched.plan import Position, StepPlan
from ddpsched.records import StepRecord, write_json
from ddpsched.recovery.checkpoints import Checkpoint, Checkpoints
from ddpsched.recovery.ledger import Head, Ledger, cut

# keys of a config that may differ when a run goes on: what is trained does not follow from them
FREE = {
    "": ("outputs", "aa", "world_size"),
    "executor": ("timeout_s", "timeline", "slowness"),
    "train": ("checkpoint_every", "keep", "save_model", "eval_every"),
}
LINES = {"records-rank*.jsonl": 0, "timeline-rank*.jsonl": 0, "evaluations.jsonl": 1}  # by file, what to add to a step


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
    """

    def __init__(
        self,
        folder: Path,
        config: RunConfig,
        rank: int,
        exchange: Exchange,
        snapshot: Snapshot | None,
        speeds: Sequence[Speed],
        head: Head,
    ) -> None:
        self._config, self._rank, self._exchange = config, rank, exchange
        self._snapshot, self._speeds = snapshot, speeds
        self._every = config.train.checkpoint_every
        self._checkpoints = Checkpoints(folder, config.train.keep)
        self._ledger = Ledger(folder, head) if rank == 0 else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

    def add(self, plan: StepPlan, records: Sequence[StepRecord]) -> None:
        """Commit a step; begin a checkpoint where one is due. Raises OSError, also of the checkpoint before."""
        if self._ledger is not None:
            self._ledger.commit(plan, skipped=records[0].mode != "simulated" and records[0].lr is None)
        if self._every and (plan.step + 1) % self._every == 0:
            self._begin(plan)

    def check(self) -> None:
        """Raise the error that ended the writing of the last checkpoint, if one did."""
        if self._writing is not None and self._writing.done():
            writing, self._writing = self._writing, None
            writing.result()

    def close(self) -> None:
        """Return when the last checkpoint is written."""
        self._thread.shutdown()
        if self._ledger is not None:
            self._ledger.close()

    def _begin(self, plan: StepPlan) -> None:
        if self._writing is not None:  # the copies are its
            writing, self._writing = self._writing, None
            writing.result()
        assert self._snapshot is not None
        assert plan.after is not None, f"policy {self._config.policy.kind}: no position after step {plan.step}"
        speeds = _gathered(self._speeds, self._exchange)
        shares = self._config.world_size if self._snapshot.is_shared else 1
        if self._rank >= shares:
            return
        self._snapshot.take()
        head = self._ledger.head if self._ledger is not None else Head()
        state = {
            "config": identity(self._config),
            "world_size": self._config.world_size,
            "position": plan.after.as_dict(),
            "ledger": list(head),
            "speeds": speeds,
        }
        self._writing = self._thread.submit(self._write, plan.step + 1, shares, state)

    def _write(self, step: int, shares: int, state: Mapping[str, Any]) -> None:
        assert self._snapshot is not None
        aside = self._checkpoints.begin(step)
        self._snapshot.write(aside, self._rank, shares)
        if self._rank:
            write_json(aside / _share(self._rank), {})
            return
        deadline = monotonic() + self._config.executor.timeout_s
        while missing := [rank for rank in range(1, shares) if not (aside / _share(rank)).exists()]:
            if monotonic() > deadline:
                waited = f"{self._config.executor.timeout_s:.0f} s"
                raise RankFailure(f"rank {missing[0]} did not write its share of {aside.name} within {waited}")
            sleep(0.02)
        assert self._ledger is not None
        self._ledger.sync()
        self._checkpoints.commit(step, state)


def newest(folder: Path, config: RunConfig) -> Checkpoint | None:
    """Return the checkpoint that a run of this config goes on from; None where there is none.

    Raises ConfigError where it was begun with another config, DataError where every checkpoint is damaged.
    """
    found = Checkpoints(folder, config.train.keep).newest()
    if found is None:
        return None
    begun, now = _flat(found.state["config"]), _flat(identity(config))
    differs = [
        f"{key} = {begun.get(key)!r}, now {now.get(key)!r}" for key in now | begun if begun.get(key) != now.get(key)
    ]
    if differs:
        raise ConfigError(
            f"{folder} holds an unfinished run that was begun with {differs[0]}"
            + (f" (and {len(differs) - 1} more differ)" if differs[1:] else "")
            + "; give the same to go on, --restart to begin anew, or another name=..."
        )
    return found


def rewind(folder: Path, checkpoint: Checkpoint) -> Head:
    """Cut off what a run wrote after a checkpoint, whose updates are lost; return the ledger's end. Rank 0 calls it.

    Raises DataError where the ledger is not the one that the checkpoint was written beside.
    """
    position, head = Position.from_dict(checkpoint.state["position"]), Head(*checkpoint.state["ledger"])
    cut(folder, head)
    Checkpoints(folder, 1).forget_after(position.step)
    for pattern, more in LINES.items():
        for path in folder.glob(pattern):
            _cut_lines(path, position.step + more)
    (folder / "records.parquet").unlink(missing_ok=True)
    return head


def restore_speeds(speeds: Sequence[Speed], ranks: Sequence[int], checkpoint: Checkpoint) -> None:
    """Let measured speeds go on from a checkpoint's, if it is of as many ranks."""
    stored = checkpoint.state["speeds"]
    for speed, rank in zip(speeds, ranks, strict=True) if speeds and stored else ():
        if rank < len(stored):
            speed.restore(stored[rank])


def starts(folder: Path | None, step: int, world_size: int) -> list[dict[str, Any]]:
    """Return the starts of a run, this one last: after which step, when, on how many ranks. ``folder``: of the others.

    They are for environment.json.
    """
    earlier = json.loads((folder / "environment.json").read_text(encoding="utf-8")).get("starts", []) if folder else []
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return [*earlier, {"step": step, "at": now, "world_size": world_size}]


def identity(config: RunConfig) -> dict[str, Any]:
    """Return the part of a config that must stay the same when its run goes on, as JSON has it."""
    values = config.model_dump(mode="json")
    for table, keys in FREE.items():
        part = values[table] if table else values
        for key in keys:
            part.pop(key)
    return values


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{before}{key}.") if isinstance(value, dict) else {before + key: value}
    return flat


def _cut_lines(path: Path, step: int) -> None:
    """Leave the lines of a file up to the first whose step is ``step`` or later, or that is no JSON."""
    kept = 0
    with path.open("rb") as file:
        for line in file:
            try:
                later = not line.endswith(b"\n") or json.loads(line)["step"] >= step
            except (ValueError, KeyError, TypeError):
                later = True
            if later:
                break
            kept += len(line)
    os.truncate(path, kept)


def _gathered(speeds: Sequence[Speed], exchange: Exchange) -> list[list[float]] | None:
    """Return what each rank's speed was measured from; None where none is measured."""
    if not speeds:
        return None
    rows = np.array([speed.recent for speed in speeds], dtype=np.float64)
    return exchange.vote(rows.view(np.int64)).view(np.float64).tolist()


def _share(rank: int) -> str:
    return f"rank-{rank:05d}.json"
