"""Step time with checkpoints against without.

    python -m experiments.benchmarks.checkpointing [--model tiny|distilbert] [--threads 1] [--rounds 20] [--launches 5]

The tiny model writes one every 10 steps, DistilBERT's geometry with random weights one every 100, of only two samples
each. Runs of one process take turns: the tiny model of 10 steps, DistilBERT of 25. A checkpoint comes after the first
step of a turn, so that the others run beside its writing. Asked is a ratio of at most 1.03. ``--threads``:
``executor.threads`` of each run; where they are as many as processors, nothing is left for writing. Printed besides is
what one checkpoint takes of the training thread (the copy) and of the processors (writing, digests).
"""

import argparse
import sys
import tempfile
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

from ddpsched.cli import guarded
from ddpsched.config import RunConfig, dump, parse
from ddpsched.run_folder import RunFolder
from ddpsched.run_loop import run_steps
from ddpsched.terminal import plain_console
from ddpsched.world import World
from experiments.benchmarks.bench import AA, Seconds, add_options, in_turn, launched, tables

WITHOUT, WITH = "without", "with checkpoints"


@dataclass(frozen=True)
class Model:
    """The steps from one checkpoint to the next, those of a turn, and the tables of the run."""

    every: int
    turn: int
    tables: dict[str, Any]


TINY = {"model": {"name": "tiny"}, "data": {"size": 400}, "global_batch": 16}
DISTILBERT = {
    "model": {"name": "distilbert-base-uncased", "weights": "random"}, "data": {"size": 2000}, "global_batch": 2,
}  # fmt: skip
MODELS = {"tiny": Model(10, 10, TINY), "distilbert": Model(100, 25, DISTILBERT)}
Measured = tuple[Seconds, dict[str, float]]


def measure(model: str, threads: int, rounds: int, seed: int) -> Measured:
    """Return the seconds of a step by arm and round, and the mean seconds of a checkpoint by part; one launch."""
    chosen, spent = MODELS[model], _timed()
    cycle = chosen.every // chosen.turn  # turns
    tables = chosen.tables | {"seed": seed, "steps": (rounds + cycle + 2) * chosen.turn}
    with tempfile.TemporaryDirectory(prefix="ddpsched-checkpointing-") as folder:
        runs = {
            name: _steps(_config(Path(folder), name, tables, threads, chosen.every if name == WITH else 0))
            for name in (WITHOUT, AA, WITH)
        }
        for run in runs.values():
            for _ in range(chosen.turn):  # it is ready, then all steps of a turn but one: a checkpoint comes after that
                next(run)
        arms = {name: lambda run=run: _turn(run, chosen.turn) for name, run in runs.items()}
        seconds = in_turn(arms, rounds, seed, left_out=cycle)
        for run in runs.values():
            run.close()
    return seconds, {part: sum(each) / len(each) for part, each in spent.items()}


def _config(folder: Path, name: str, tables: dict[str, Any], threads: int, every: int) -> RunConfig:
    return parse(
        {
            **tables, "world_size": 2, "policy": {"kind": "balanced"}, "outputs": str(folder),
            "name": name.replace("/", "-").replace(" ", "-"), "executor": {"kind": "virtual", "threads": threads},
            "train": {"checkpoint_every": every, "save_model": False},
        }
    )  # fmt: skip


def _steps(config: RunConfig) -> Generator[int, None, None]:
    return run_steps(config, RunFolder(config.run_dir, dump(config), overwrite=True), World(), None)


def _turn(run: Generator[int, None, None], steps: int) -> float:
    """Return the mean seconds of so many steps."""
    begin = perf_counter()
    for _ in range(steps):
        next(run)
    return (perf_counter() - begin) / steps


def _timed() -> dict[str, list[float]]:
    """Return lists to which every checkpoint of this process adds its seconds, by part."""
    from ddpsched.recovery.keeper import Keeper
    from ddpsched.training.state import Snapshot

    spent: dict[str, list[float]] = {"copy": [], "write, processor": [], "write, wall": []}
    take, write = Snapshot.take, Keeper._write

    def taken(self: Snapshot) -> None:
        begin = perf_counter()
        take(self)
        spent["copy"].append(perf_counter() - begin)

    def written(self: Keeper, *of: Any) -> None:
        begin, busy = perf_counter(), thread_time()
        write(self, *of)
        spent["write, processor"].append(thread_time() - busy)
        spent["write, wall"].append(perf_counter() - begin)

    Snapshot.take, Keeper._write = taken, written  # type: ignore[method-assign, assignment]
    return spent


def main(words: Sequence[str]) -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmarks.checkpointing", description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="tiny", help="whose steps (tiny)")
    parser.add_argument("--threads", type=int, default=1, help="executor.threads, of each run (1)")
    add_options(parser)
    given = parser.parse_args(words)

    def body() -> None:
        found = launched(measure, given.model, given.threads, given.rounds, launches=given.launches)
        every = MODELS[given.model].every
        title, console = f"{given.model}, a checkpoint every {every} steps, threads = {given.threads}", plain_console()
        for table in tables({title: [seconds for seconds, _ in found]}, "ms a step", 1e3):
            console.print(table)
        for part in found[0][1]:
            console.print(f"{part}: {1e3 * sum(parts[part] for _, parts in found) / len(found):.1f} ms a checkpoint")

    return guarded(body)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
