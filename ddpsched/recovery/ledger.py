"""The ledger of a run: the samples of each step whose update is in the weights, a line a step.

A line holds a digest of itself and the line before, so that no line can be changed, lost or added in the middle. Rank 0
writes it, right after the optimizer step; a run that goes on from a checkpoint cuts off the lines after it, whose
updates are lost with the process.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from ddpsched.decode import decode_json
from ddpsched.errors import DataError
from ddpsched.step_plan import StepPlan

LEDGER = "ledger.jsonl"
START = "0" * 32  # what the first line chains to
LARGEST = 2**62
CHAIN, END = b',"chain":"', b'"}\n'


class Head(NamedTuple):
    """The end of a ledger: how many steps it holds, and the digest of its last line."""

    steps: int = 0
    chain: str = START


@dataclass(frozen=True)
class Entry:
    """A step of a ledger.

    Attributes:
        step: its number, from 0.
        epoch: from 0.
        ranks: `ranks[r]` are the ids that rank r ran.
        skipped: whether its gradient was not finite, and so not applied.
        plan: the digest of its plan, as records have it.
        head: the ledger's end after this step.
        end: the bytes of the file up to and with its line.
    """

    step: int
    epoch: int
    ranks: list[list[int]]
    skipped: bool
    plan: str
    head: Head
    end: int


class Ledger:
    """The ledger of a run's folder, open for more lines after ``head``."""

    def __init__(self, folder: Path, head: Head) -> None:
        self.head = head
        self._file = (folder / LEDGER).open("ab")

    def commit(self, plan: StepPlan, skipped: bool) -> None:
        """Append a step that every rank has applied, or ``skipped``. Raises OSError, of a full disk for example."""
        values = {
            "step": plan.step,
            "epoch": plan.epoch,
            "ranks": [plan.rank_ids(rank).tolist() for rank in range(plan.world_size)],
            "skipped": skipped,
            "plan": plan.digest_hex,
        }
        text = json.dumps(values, separators=(",", ":")).encode()
        line, head = chained(self.head, text)
        self._file.write(line)
        self._file.flush()
        self.head = head

    def sync(self) -> None:
        """Return when all lines are on the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def chained(head: Head, text: bytes) -> tuple[bytes, Head]:
    """Return the line of a step, a JSON object, after the steps before it; and the ledger's end after it."""
    chain = _digest(head.chain, text)
    return text[:-1] + CHAIN + chain.encode() + END, Head(head.steps + 1, chain)


def entries(folder: Path) -> Iterator[Entry]:
    """Yield the steps of a run's ledger in their order; an incomplete last line is left out, as is a missing file.

    Raises DataError, naming file and line, where a line cannot be read or does not chain to the one before.
    """
    path, head, end = folder / LEDGER, Head(), 0
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            end += len(line)
            yield (entry := _entry(line, head, end, f"{path}, line {number}"))
            head = entry.head


def committed(folder: Path, head: Head) -> list[Entry]:
    """Return the first ``head.steps`` steps of a run's ledger. Raises DataError where they do not end in ``head``."""
    found = list(islice(entries(folder), head.steps))
    end = found[-1].head if found else Head()
    if end != head:
        raise DataError(
            f"{folder / LEDGER} holds {end.steps} steps that end in {end.chain}, but the checkpoint was written after "
            f"{head.steps} that end in {head.chain}: they are of different runs; begin anew with --restart"
        )
    return found


def cut(folder: Path, head: Head) -> None:
    """Leave the first ``head.steps`` lines of a run's ledger. Raises DataError where they do not end in ``head``."""
    found, path = committed(folder, head), folder / LEDGER
    if path.exists():
        os.truncate(path, found[-1].end if found else 0)


def _entry(line: bytes, head: Head, end: int, place: str) -> Entry:
    text, mark, chain = line.rpartition(CHAIN)
    body, expected = text + b"}", _digest(head.chain, text + b"}")
    if not mark or chain != expected.encode() + END:
        raise DataError(
            f"{place}: does not chain to the {head.steps} steps before: a line was changed, lost or added after it was "
            "written"
        )
    try:
        entry = Entry(**decode_json(body), head=Head(head.steps + 1, expected), end=end)
    except (ValueError, TypeError):
        raise DataError(f"{place}: is no step of a ledger") from None
    ranks = entry.ranks if isinstance(entry.ranks, list) else [None]
    ids = [each for rank in ranks for each in (rank if isinstance(rank, list) else [None])]
    if entry.step != head.steps or any(
        type(each) is not int or not 0 <= each < LARGEST for each in (*ids, entry.epoch)
    ):
        needs = f"step = {head.steps}, and epoch and lists of ids from 0 to 2**62 - 1"
        raise DataError(f"{place}: is no step of a ledger, which needs {needs}")
    return entry


def _digest(before: str, text: bytes) -> str:
    return blake2b(before.encode() + text, digest_size=16).hexdigest()
