"""Collectives of gradients, from the timeline files of a run.

A run with ``executor.timeline = true`` leaves a ``timeline-rank{r}.jsonl`` per rank, a line a step::

    {"step": s, "microbatches": [[data begins, forward begins, backward begins, backward ends], ...],
     "collectives": [[label, bytes, launched, done], ...], "ready": t, "done": t}
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from analysis.run_files import TimelineLine, read_object_lines

GATHER = "gather"  # the label of collectives that bring weights


class Transfer(NamedTuple):
    """One collective on one rank: under way from the last rank's launch to its end here."""

    label: str
    num_bytes: int
    launched_s: float  # by this rank
    begin_s: float
    end_s: float


def timeline_lines(path: Path) -> dict[tuple[int, int], dict[str, Any]]:
    """Return the lines of all ``timeline-rank*.jsonl`` by (step, rank), without an incomplete last line."""
    lines: dict[tuple[int, int], dict[str, Any]] = {}
    for file in path.glob("timeline-rank*.jsonl"):
        rank = int(file.stem.removeprefix("timeline-rank"))
        for line in read_object_lines(file, TimelineLine, ended=False):
            lines[line["step"], rank] = line
    return lines


def transfers(
    collectives: Mapping[tuple[int, int], Sequence[Sequence[Any]]], world_size: int
) -> dict[tuple[int, int], list[Transfer]]:
    """Match ranks' collectives of a step, ``[label, bytes, launched, done]``, by label and turn.

    Returns the transfers by (step, rank). Steps that not all ranks wrote are left out: their last launch is unknown.
    """
    launches: dict[tuple[int, str, int], list[float]] = defaultdict(list)
    numbered: dict[tuple[int, int], list[tuple[tuple[int, str, int], Sequence[Any]]]] = {}
    for (step, rank), entries in collectives.items():
        turns: dict[str, int] = defaultdict(int)
        numbered[step, rank] = []
        for entry in entries:
            same = (step, entry[0], turns[entry[0]])
            turns[entry[0]] += 1
            launches[same].append(entry[2])
            numbered[step, rank].append((same, entry))
    return {
        key: [
            # clocks may put the last launch a little behind the end
            Transfer(label, num_bytes, launched, min(max(launches[same]), done), done)
            for same, (label, num_bytes, launched, done) in entries
        ]
        for key, entries in numbered.items()
        if all((key[0], rank) in numbered for rank in range(world_size))
    }


def covered_s(spans: Sequence[tuple[float, float]]) -> float:
    """Return the length of the union of spans ``(begin, end)``, in seconds.

    >>> covered_s([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)])
    4.0
    """
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total
