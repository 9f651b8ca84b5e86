"""Whether other people's loops, stopped at random steps and resumed, run each sample once an epoch, in the same order.

``python -m experiments.reliability.resumed_loops [--count 50] [--loop NAME ...] [--freeze]``: three epochs of each loop
on two gloo ranks, with 0 and with 2 workers. Each is stopped at so many random steps, the first and last of an epoch
among them, and resumed with new objects from what it saved: what both did is compared with the run that was not
stopped, step by step on each rank.
"""

import os
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from ddpsched.local_ranks import answers, join_group, run_ranks
from experiments.reliability.findings import Finding, Freeze, report
from experiments.reliability.other_loops import BATCH, EPOCHS, LOOPS, RANKS, SIZE, Steps, Task

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
EPOCH = -(-SIZE // BATCH)  # steps


def stops(count: int, seed: int) -> list[int]:
    """Return so many different steps to stop after, in order; those at the ends of epochs are among them."""
    ends = [1, EPOCH - 1, EPOCH, EPOCH + 1, EPOCHS * EPOCH - 1][:count]
    others = np.random.default_rng(seed).permutation(np.setdiff1d(np.arange(1, EPOCHS * EPOCH), ends))
    return sorted([*ends, *others[: count - len(ends)].tolist()])


def on_rank(name: str, workers: int, count: int, folder: str) -> tuple[Steps, list[tuple[Steps, Steps]]]:
    """Return the run that was not stopped, and both parts of each that was; a rank runs this."""
    join_group()
    os.environ["TORCHELASTIC_RUN_ID"] = "resumed"  # as torchrun sets it, by which Lightning knows its ranks
    warnings.simplefilter("ignore")
    loop, place = LOOPS[name], Path(folder)
    whole = loop(Task(place, workers))
    parts = []
    for stop in stops(count, seed=workers):
        parts.append((loop(Task(place, workers, stop=stop)), loop(Task(place, workers, resumed=stop))))
    return whole, parts


def faults_of(name: str, workers: int, count: int) -> list[str]:
    """Return what was not as it should be."""
    with tempfile.TemporaryDirectory(prefix="ddpsched-resumed-") as folder:
        ranks = answers(run_ranks(on_rank, RANKS, name, workers, count, folder, timeout_s=300.0))
    found = []
    whole = [rank[0] for rank in ranks]
    for number, stop in enumerate(stops(count, seed=workers)):
        joined = [first + rest for first, rest in (rank[1][number] for rank in ranks)]
        if joined != whole:
            found.append(f"{name}, {workers} workers, stopped after {stop}: other samples than without")
        steps = [[id for rank in joined for id in rank[step]] for step in range(min(map(len, joined)))]
        for epoch in range(EPOCHS):
            counts = Counter(id for step in steps[epoch * EPOCH : (epoch + 1) * EPOCH] for id in step)
            if len(counts) != SIZE or set(counts.values()) != {1}:
                found.append(f"{name}, {workers} workers, stopped after {stop}: epoch {epoch} is not exactly once")
    return found


@app.command()
def main(
    count: Annotated[int, typer.Option(min=5, max=EPOCHS * EPOCH - 1, help="stops of each loop")] = 25,
    loop: Annotated[list[str] | None, typer.Option(help="loops; all without")] = None,
    freeze: Freeze = False,
) -> None:
    """Stop and resume each loop so often, with and without workers."""
    faults, runs = list[str](), 0
    for name in loop or LOOPS:
        for workers in (0, 2):
            found = faults_of(name, workers, count)
            faults, runs = faults + found, runs + count
            print(f"{name}, {workers} workers: {count} resumed, {len(found)} faults", flush=True)
            for fault in found[:3]:
                print(f"  {fault}", flush=True)
    finding = Finding(
        "resumed_loops",
        "Other people's loops, resumed",
        f"{2 * count} stops in each, workers 0 and 2: the same samples, none twice, none lost",
        f"{runs} resumed ({', '.join(loop or LOOPS)}), {len(faults)} faults",
        not faults and not loop,
        f"python -m experiments.reliability.resumed_loops --count {count}",
        {"faults": faults[:20]},
    )
    raise typer.Exit(report(finding, freeze))


if __name__ == "__main__":
    app()
