"""The audit of a run: whether each sample of each epoch was trained exactly once, by its ledger and records.

The ledger says which samples each committed step ran, over all starts of the run; the records say which plan each rank
ran, and with how many samples. The newest checkpoint, and a finished run's environment.json, say where the ledger must
at least have come to. Samples of a step whose gradient was not finite and skipped are declared so.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ddpsched.data.quarantine import QUARANTINE
from ddpsched.decode import shown
from ddpsched.errors import AGAIN, DataError
from ddpsched.own_folder import refuse_special
from ddpsched.records import read_lines
from ddpsched.recovery.checkpoints import Checkpoints
from ddpsched.recovery.earlier import starts_in
from ddpsched.recovery.ledger import LEDGER, Entry, Head, entries
from ddpsched.run_folder import read_environment, read_status

MOST_SAMPLES = 10**9  # whose counts take 8 GB
NAMED = 5  # samples or steps that a message names


@dataclass
class EpochAudit:
    """An epoch: how many samples were trained in it, which never or more than once, which in skipped steps."""

    epoch: int
    complete: bool
    num_trained: int = 0
    never: list[int] = field(default_factory=list)
    again: list[int] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)


@dataclass
class Audit:
    """The findings of a run's audit.

    Attributes:
        run: its folder.
        state: of its status.json.
        num_steps: committed steps.
        num_samples: samples of an epoch.
        starts: where processes began, as environment.json has it.
        epochs: those that were begun.
        with_replacement: whether the policy may repeat and leave out samples by its options; then neither is a fault.
        num_quarantined: rows of the data files that were left out as unusable, as the run declared.
        faults: one message each; none where all holds.
    """

    run: str
    state: str
    num_steps: int
    num_samples: int
    starts: list[dict[str, Any]]
    epochs: list[EpochAudit]
    with_replacement: bool
    num_quarantined: int
    faults: list[str]


def audit(folder: Path) -> Audit:
    """Return what the ledger and the records of a run show. Raises DataError where they cannot be read.

    Every epoch but the last must be whole, and so must the last of a run by epochs that is done.
    """
    refuse_special(folder)
    environment = _environment(folder)
    if "loop" in environment:
        raise DataError(f"{folder}: a loop of one's own wrote it, which keeps no ledger; give a run of ddpsched's own")
    config = _config(folder)
    size = environment.get("num_samples")
    if type(size) is not int or not 1 <= size <= MOST_SAMPLES:
        fault = f"num_samples = {shown(size)}: must be from 1 to {MOST_SAMPLES:,}"
        raise DataError(f"{folder / 'environment.json'}: {fault}; give the folder of a run")
    state = read_status(folder)["state"]
    steps = list(entries(folder))
    if not steps and state == "done":
        raise DataError(f"{folder} is done, but has no ledger.jsonl: a run of an earlier version cannot be audited")
    largest = max((each for entry in steps for rank in entry.ranks for each in rank), default=0)
    if largest >= size:
        fault = f"names sample {largest}, but the data has {size} samples, 0 to {size - 1}"
        raise DataError(f"{folder / LEDGER} {fault}")
    replaces = bool(config["policy"].get("replacement", False))
    by_epochs = config.get("epochs") is not None and state == "done"
    epochs = _epochs(steps, size, by_epochs)
    faults = [*_gaps(steps), *_cut_off(folder, steps, environment if state == "done" else {})]
    if not replaces:
        for each in epochs:
            faults += _faults(each, steps, size)
    faults += _contradictions(steps, read_lines(folder), state == "done")
    quarantined = environment.get("num_quarantined", 0)
    if type(quarantined) is not int or quarantined < 0:
        fault = f"num_quarantined = {shown(quarantined)} is no count of rows"
        raise DataError(f"{folder / 'environment.json'}: {fault}; {AGAIN}")
    faults += _not_named(folder, quarantined)
    return Audit(str(folder), state, len(steps), size, starts_in(folder), epochs, replaces, quarantined, faults)


def _gaps(steps: Sequence[Entry]) -> Iterator[str]:
    """Yield where an epoch is passed over, or begun again."""
    for before, entry in pairwise((None, *steps)):
        last = -1 if before is None else before.epoch
        if entry is not None and not max(last, 0) <= entry.epoch <= last + 1:
            yield f"step {entry.step} is of epoch {entry.epoch}, after " + (
                f"one of epoch {last}" if before else "none"
            )


def _cut_off(folder: Path, steps: Sequence[Entry], environment: dict[str, Any]) -> Iterator[str]:
    """Yield where the ledger is not one that came to where the newest checkpoint or the run's end saw it."""
    heads = {}
    try:
        newest = Checkpoints(folder, 1).newest()
        if newest is not None:
            heads[f"checkpoint {newest.path.name}"] = newest.state.get("ledger")
    except DataError as error:
        yield f"the ledger cannot be compared with a checkpoint: {error}"
    if environment:
        heads["the run's end"] = environment.get("ledger")
    for name, head in heads.items():
        if not (isinstance(head, list) and len(head) == 2 and type(head[0]) is int and head[0] >= 0):
            yield f"{name} does not say where the ledger was: {shown(head)}"
        elif head[0] > len(steps):
            yield f"the ledger holds {len(steps)} steps, but {name} is after {head[0]}"
        elif Head(*head) != (steps[head[0] - 1].head if head[0] else Head()):
            yield f"step {head[0] - 1} of the ledger is not the one that {name} was after"


def _epochs(steps: Sequence[Entry], size: int, last_is_whole: bool) -> list[EpochAudit]:
    found = []
    for epoch in sorted({entry.epoch for entry in steps}):
        own = [entry for entry in steps if entry.epoch == epoch]
        counts = _counts(own, size)
        applied = _counts([entry for entry in own if not entry.skipped], size)
        whole = epoch < steps[-1].epoch or last_is_whole
        never = np.flatnonzero(counts == 0) if whole else np.empty(0, dtype=np.int64)
        found.append(
            EpochAudit(
                epoch,
                whole or bool((counts > 0).all()),
                int((applied > 0).sum()),
                never.tolist(),
                np.flatnonzero(counts > 1).tolist(),
                np.flatnonzero((counts > 0) & (applied == 0)).tolist(),
            )
        )
    return found


def _counts(steps: Sequence[Entry], size: int) -> npt.NDArray[np.int64]:
    """Return how often each id was run."""
    ids = np.array([each for entry in steps for rank in entry.ranks for each in rank], dtype=np.int64)
    return np.bincount(ids, minlength=size)


def _faults(epoch: EpochAudit, steps: Sequence[Entry], size: int) -> Iterator[str]:
    if epoch.never:
        yield f"epoch {epoch.epoch}: {len(epoch.never)} of {size} samples were never trained: {_named(epoch.never)}"
    if epoch.again:
        first = epoch.again[0]
        where = [e.step for e in steps if e.epoch == epoch.epoch and any(first in rank for rank in e.ranks)]
        yield (
            f"epoch {epoch.epoch}: {len(epoch.again)} samples were trained more than once: {_named(epoch.again)}; "
            f"sample {first} in steps {_named(where)}"
        )


def _contradictions(steps: Sequence[Entry], rows: Sequence[dict[str, Any]], is_done: bool) -> Iterator[str]:
    """Yield where records and ledger differ: plan and samples of each rank and step.

    A run that was killed may have recorded the step that it was about to commit; one that is done may not.
    """
    ledger = {(e.step, rank): (e.plan, len(ids)) for e in steps for rank, ids in enumerate(e.ranks)}
    records = {(row["step"], row["rank"]): (row["plan_hash"], row["num_samples"]) for row in rows}
    if steps and (missing := [key for key in ledger if key not in records]):
        yield f"{len(missing)} records are missing, first that of step {missing[0][0]}, rank {missing[0][1]}"
    about_to_commit = None if is_done else len(steps)
    if more := [key for key in records if key not in ledger and key[0] != about_to_commit]:
        yield f"{len(more)} records are of no step of the ledger, first that of step {more[0][0]}, rank {more[0][1]}"
    if differs := [key for key, value in ledger.items() if records.get(key, value) != value]:
        (step, rank), count = differs[0], len(differs)
        yield (
            f"{count} records contradict the ledger, first in step {step}, rank {rank}: plan and samples are "
            f"{records[step, rank]}, in the ledger {ledger[step, rank]}"
        )


def _not_named(folder: Path, num_quarantined: int) -> Iterator[str]:
    """Yield a fault where ``quarantine.jsonl`` does not name as many rows as the run left out."""
    path = folder / QUARANTINE
    named = len(path.read_bytes().splitlines()) if path.exists() else 0
    if named != num_quarantined:
        yield f"environment.json declares {num_quarantined} rows left out of the data, {QUARANTINE} names {named}"


def _named(values: Sequence[int]) -> str:
    return ", ".join(map(str, values[:NAMED])) + (", ..." if len(values) > NAMED else "")


def _environment(folder: Path) -> dict[str, Any]:
    path = folder / "environment.json"
    if not path.exists():
        fault = "is not the folder of a run: it has no environment.json"
        raise DataError(f"{folder} {fault}; give outputs/STUDY/RUN")
    return read_environment(folder)


def _config(folder: Path) -> dict[str, Any]:
    from ddpsched.config import load

    return load(folder / "config.toml").model_dump(mode="json")
