"""The events of a run, written for ui.perfetto.dev and chrome://tracing.

The Chrome trace has a process per rank. Its thread "compute" has a slice per
step, and in it compute (and in that data, forward and backward of each micro-batch,
where there are timeline files), waiting for the straggler, exposed communication,
vote and optimizer. Its collectives are asynchronous slices beside it, since they
overlap. A process "run" names the rank that was last in each step.

Times are whole microseconds: viewers drop a slice that exceeds its parent by a
rounding error. For the same reason no slice ends after its parent. The last
backward, in which a synchroniser may wait for other ranks, ends when the rank's
last gradient is ready. Vote and optimizer, of which only durations are known, end
when the rank's next step begins. Format: docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

import json
from collections.abc import Hashable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.waits import Timeline
from ddpsched.records import write_text

Event = dict[str, Any]

DEFINITIONS = {
    "compute": "plan in hand -> this rank's last gradient ready",
    "straggler": "the rank that was ready last; none where the clocks cannot decide",
    "waiting for rank q": "this rank ready -> the last rank q ready",
    "exposed communication": "last rank ready -> all ranks' gradients in, here",
    "communication": "a collective, from the last rank's launch to its end here",
    "times": "microseconds on rank 0's clock since the run's first step, plus origin_us",
}
STRAGGLER = "straggler: compute"
PARTS = ("data", "forward", "backward")


def write_trace(timeline: Timeline, path: Path) -> None:
    """Write the whole run as one JSON object."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(trace(timeline), allow_nan=False, separators=(",", ":")))


def trace(timeline: Timeline) -> dict[str, Any]:
    """Return the trace as JSON values: ``traceEvents``, and their definitions in ``otherData``."""
    origin_s = min(0.0, float(timeline.table["began_at_s"].min()))  # another rank may begin before rank 0 does
    clocks = [clock._asdict() for clock in timeline.clocks]
    about = {"run": timeline.path.name, "mode": timeline.mode, "clocks": clocks, "definitions": DEFINITIONS}
    return {
        "displayTimeUnit": "ms",
        "otherData": about | {"origin_us": microseconds(-origin_s)},
        "traceEvents": [*_names(timeline), *_steps(timeline, origin_s), *_ranks(timeline, origin_s)],
    }


def microseconds(seconds: float) -> int:
    """Return seconds as whole microseconds."""
    return round(seconds * 1e6)


def _names(timeline: Timeline) -> Iterator[Event]:
    """Yield names: process r is rank r; the one after the ranks has the steps and comes first."""
    size = int(timeline.config["world_size"])
    for pid in range(size + 1):
        head = {"ph": "M", "pid": pid, "tid": pid}
        name, thread, place = ("run", "steps", 0) if pid == size else (f"rank {pid}", "compute", pid + 1)
        yield head | {"name": "process_name", "args": {"name": name}}
        yield head | {"name": "process_sort_index", "args": {"sort_index": place}}
        yield head | {"name": "thread_name", "args": {"name": thread}}


def last_ranks(rows: pd.DataFrame) -> str:
    """Return the last rank of one step's rows: ``rank 3``, or ``rank 1 or 3`` where the clocks cannot decide."""
    ranks = rows.loc[rows["maybe_last"], "rank"].tolist()
    return "rank " + " or ".join(map(str, ranks)) if len(ranks) <= 3 else f"one of {len(ranks)} ranks"


def _steps(timeline: Timeline, origin_s: float) -> Iterator[Event]:
    """Yield the slice of each step, from its first rank's beginning to the next step's."""
    pid = int(timeline.config["world_size"])
    begins = timeline.table.groupby("step")["began_at_s"].min()
    end_s = float(timeline.table["done_at_s"].max())
    ends = [*begins.tolist()[1:], end_s]
    for (step, rows), begin, end in zip(timeline.table.groupby("step"), begins, ends, strict=True):
        name = f"step {step}: {last_ranks(rows)} last"
        args = {"step": step, "straggler_wait_s": _plain(rows["straggler_wait_s"].max())}
        yield from _slice(name, pid, microseconds(begin - origin_s), microseconds(end - origin_s), args)


def _ranks(timeline: Timeline, origin_s: float) -> Iterator[Event]:
    last = {step: last_ranks(rows) for step, rows in timeline.table.groupby("step")}
    for _, rows in timeline.table.groupby("rank"):
        steps = rows.to_dict("records")
        nexts = [row["began_at_s"] for row in steps[1:]] + [float("inf")]
        for row, next_s in zip(steps, nexts, strict=True):
            yield from _rank_step(timeline, row, last[row["step"]], next_s, origin_s)


def _rank_step(
    timeline: Timeline, row: dict[Hashable, Any], last: str, next_s: float, origin_s: float
) -> Iterator[Event]:
    """Yield the step's slice, then the slices in it, each cut where the one around it ends."""
    step, pid, straggler = row["step"], row["rank"], bool(row["straggler"])
    began, ready = row["began_at_s"], row["ready_at_s"]
    about: Event = {"step": step, "straggler": straggler}
    compute = about | {"samples": row["num_samples"], "padded_tokens": row["padded_tokens"]}
    spans = [(STRAGGLER if straggler else "compute", began, ready, compute)]
    for place, marks in enumerate(timeline.microbatches.get((step, pid), [])):
        for name, (begin, end) in zip(PARTS, pairwise(marks), strict=True):
            spans.append((name, begin, min(end, ready), {"step": step, "microbatch": place}))
    waited, cursor = min(row["straggler_wait_s"], row["wait_s"]), ready
    for name, length in (
        (f"waiting for {last}", waited),
        ("exposed communication", row["wait_s"] - waited),
        ("vote", row["vote_s"]),
        ("optimizer", row["optimizer_s"]),
    ):
        if not pd.isna(length):
            spans.append((name, cursor, cursor + length, {"step": step}))
            cursor += length
    first, last_us = microseconds(began - origin_s), microseconds(min(cursor, next_s) - origin_s)
    times = {str(name): _plain(value) for name, value in row.items() if str(name).endswith("_s")}
    yield from _slice(f"step {step}", pid, first, last_us, about | times)
    for name, begin, end, args in spans:
        cut = [min(max(microseconds(moment - origin_s), first), last_us) for moment in (begin, end)]
        yield from _slice(name, pid, cut[0], cut[1], args)
    for turn, moved in enumerate(timeline.transfers.get((step, pid), [])):
        head: Event = {"cat": "communication", "name": "communication", "pid": pid, "tid": pid}
        head["id2"] = {"local": f"{step}.{turn}"}  # a plain id would take the slice out of its process
        args = {"collective": moved.label, "bytes": moved.num_bytes, "step": step}
        args["waited_for_launch_s"] = moved.begin_s - moved.launched_s
        yield head | {"ph": "b", "ts": microseconds(moved.begin_s - origin_s), "args": args}
        yield head | {"ph": "e", "ts": microseconds(moved.end_s - origin_s)}


def _slice(name: str, pid: int, begin: int, end: int, args: Event) -> Iterator[Event]:
    """Yield a complete event; none where it would be shorter than a microsecond."""
    if end > begin:
        colour = {"cname": "terrible"} if name == STRAGGLER else {}  # Perfetto colours by name
        head = {"ph": "X", "name": name, "pid": pid, "tid": pid, "ts": begin, "dur": end - begin}
        yield head | colour | {"args": args}


def _plain(value: float) -> float | None:
    return None if pd.isna(value) else float(value)
