"""Synchronisers side by side: step time, exposed communication and memory on real gloo ranks of this machine.

    python -m experiments.benchmarks.syncs CONFIG [kind=KIND[,key=value ...] ...] [key=value ...] [--launches 5]
        [--output FILE]

`kind=naive,barrier=true` is a synchroniser and its keys; without any, those below. Ratios are to the first, which is
there twice (A/A). Time: in a launch, a fresh group of ranks with a seed of its own, each has a separate model, and step
s of all runs in turn, each from a barrier on; forward, backward and synchronisation, without the optimizer. Intervals
are of launches. *Exposed* is the time of a step after the last rank has its gradients ready, which no rank's compute
hides; *waiting* is the mean over ranks of the time from a rank's gradients to the last rank's. Memory: a run for each,
with its optimizer; the largest rank's peak. All models of a launch take memory at once: about 1.1 GB each on a rank
with DistilBERT.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich import box
from rich.table import Table

from analysis.stats import MIN_STEPS
from ddpsched.cli import guarded
from ddpsched.config import RunConfig, apply_overrides, load, parse
from ddpsched.environment import describe
from ddpsched.errors import ConfigError
from ddpsched.exchange import LocalExchange
from ddpsched.local_ranks import answers, join_group, run_ranks
from ddpsched.planning.planner import num_steps, plan_steps
from ddpsched.records import write_json
from ddpsched.terminal import plain_console
from experiments.benchmarks.bench import AA, LAUNCHES, LEFT_OUT, Seconds, add_launches, in_turn, rounded, with_ratios

KINDS = ("ddp", "naive", "overlap", "bucketed")
MEMORY_STEPS = 6
Stamps = npt.NDArray[np.int64]  # (steps, ranks, 5): began, ready, done in ns of one clock; messages, bytes


def with_kind(config: RunConfig, kind: str) -> RunConfig:
    """Return the config with this synchroniser. Raises ConfigError for one that is not valid."""
    name, *keys = kind.split(",")
    return parse({**config.model_dump(), "sync": apply_overrides({"kind": name}, keys)}, source=f"kind={kind}")


def step_times(config: RunConfig, kinds: Sequence[str], seed: int) -> tuple[Seconds, dict[str, Stamps]]:
    """Return the step times by synchroniser, and the stamps of all ranks: one launch. Runs on each rank."""
    config = config.model_copy(update={"seed": config.seed + seed})
    learners, plans, exchange, world = _start(config, [kinds[0], *kinds])
    offset_s = exchange.clock_offsets()[world.rank].offset_s
    names = [kinds[0], AA, *kinds[1:]]
    stamps: dict[str, list[Any]] = {name: [] for name in names}

    def step_s(name: str, learner: Any) -> float:
        plan = plans[len(stamps[name])]
        exchange.barrier()
        step = learner.run(plan.ranks[world.rank], lambda: 1.0 / plan.global_batch, seed=plan.step)
        learner.optimiser.clear()
        marks = [learner.clock.host_s(mark) + offset_s for mark in (step.begin, step.ready, step.done)]
        sent = [len(step.collectives), sum(c.num_bytes for c in step.collectives)]
        row = np.array([*np.rint(np.array(marks) * 1e9), *sent], dtype=np.int64)
        stamps[name].append(exchange.vote(row[None]))
        return float(stamps[name][-1][:, 2].max() - stamps[name][-1][:, 0].min()) / 1e9

    arms = {name: partial(step_s, name, learner) for name, learner in zip(names, learners, strict=True)}
    seconds = in_turn(arms, len(plans) - LEFT_OUT, seed, LEFT_OUT)
    return seconds, {name: np.stack(rows[LEFT_OUT:]) for name, rows in stamps.items()}


def peak_memory(config: RunConfig) -> int:
    """Return this rank's largest peak of a step with its optimizer, in bytes. Runs on each rank."""
    learners, plans, _, world = _start(config, [config.sync.kind])
    (learner,) = learners
    peaks = []
    for plan in plans:
        step = learner.run(plan.ranks[world.rank], lambda batch=plan.global_batch: 1.0 / batch, seed=plan.step)
        learner.optimiser.gradient_norm()
        learner.optimiser.step()
        peaks.append(step.peak_memory_bytes or 0)
    return max(peaks[1:])


def _start(config: RunConfig, kinds: Sequence[str]) -> Any:
    """Return a learner for each of ``kinds``, the plans, the ranks' exchange and the world of this rank."""
    from ddpsched.training.clock import pick_device
    from ddpsched.training.group_exchange import GroupExchange
    from ddpsched.training.learner import Learner
    from ddpsched.world import World

    join_group(config.executor.timeout_s)
    world, samples = World.detect(), config.load_samples()
    spec = config.plan_spec()
    steps = num_steps(spec, samples.train)
    learners = []
    for kind in kinds:
        kind_config = config if kind == config.sync.kind else with_kind(config, kind)
        learner = Learner(kind_config, samples, pick_device(kind_config, world.local_rank), synchronised=True)
        learner.optimiser.schedule(steps)
        learner.forward = learner.sync.module
        learners.append(learner)
    plans = list(plan_steps(spec, samples.train, LocalExchange(world.size)))
    return learners, plans, GroupExchange(world, config.executor.timeout_s), world


def figures(launches: Sequence[tuple[Seconds, dict[str, Stamps]]], peaks: dict[str, int]) -> list[dict[str, Any]]:
    """Return a row for each synchroniser, in seconds and bytes, and one for the A/A, which has no memory.

    ``launches``: of each what ``step_times`` returned.
    """
    rows: list[dict[str, Any]] = []
    for kind in launches[0][0]:
        table = np.concatenate([stamps[kind] for _, stamps in launches])
        began, ready, done = (table[:, :, column] / 1e9 for column in range(3))
        exposed = done.max(axis=1) - ready.max(axis=1)
        peak = peaks.get(kind)
        rows.append(
            {
                "arm": kind,
                "launches_s": [rounded(seconds[kind]) for seconds, _ in launches],
                "step_s": float(np.mean([seconds[kind].mean() for seconds, _ in launches])),
                "compute_s": float((ready - began).max(axis=1).mean()),
                "waiting_s": float((ready.max(axis=1, keepdims=True) - ready).mean()),
                "exposed_s": float(exposed.mean()),
                "exposed_share": float(exposed.sum() / (done.max(axis=1) - began.min(axis=1)).sum()),
                "num_messages": int(np.median(table[:, :, 3])),
                "num_bytes": int(np.median(table[:, :, 4])),
                "peak_memory_bytes": peak,
                "memory_ratio": None if peak is None else peak / next(iter(peaks.values())),
            }
        )
    return rows


def report(rows: Sequence[dict[str, Any]]) -> Table:
    """Return the rows as a table for the terminal."""
    first = rows[0]["arm"]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("synchroniser", no_wrap=True)
    for name in (
        "step s",
        f"step / {first}'s (95 %)",
        "largest\ncompute s",
        "waiting s",
        "exposed s",
        "share\nof step",
        "messages",
        "MB sent",
        "peak memory",
        f"/ {first}'s",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("step is")
    for row in rows:
        peak = row["peak_memory_bytes"]
        table.add_row(
            row["arm"],
            f"{row['step_s']:.3f}",
            ratio_text(row["ratio"]),
            f"{row['compute_s']:.3f}",
            f"{row['waiting_s']:.3f}",
            f"{row['exposed_s']:.3f}",
            f"{row['exposed_share']:.1%}",
            str(row["num_messages"]),
            f"{row['num_bytes'] / 1e6:.0f}",
            "" if peak is None else f"{peak / 1e9:.3f} GB",
            "" if peak is None else f"{row['memory_ratio']:.3f}",
            row["verdict"],
        )
    return table


def ratio_text(row: dict[str, float | None] | None) -> str:
    """Return a row's ratio and its interval for the terminal; nothing for None."""
    if row is None:
        return ""
    return (
        f"{row['ratio']:.3f}" if row["low"] is None else f"{row['ratio']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
    )


def measure(config: RunConfig, kinds: Sequence[str], launches: int = LAUNCHES) -> tuple[int, list[dict[str, Any]]]:
    """Return the steps of a launch that count, and the rows.

    Times are from so many groups of ranks one after another, memory from a group for each synchroniser.

    Raises ConfigError where the first steps, which do not count, are all.
    """
    if config.steps is not None and config.steps <= LEFT_OUT:
        raise ConfigError(
            f"steps = {config.steps}: the first {LEFT_OUT} are left out; give more, and {LEFT_OUT + MIN_STEPS} or more "
            "for intervals"
        )
    times = [answers(run_ranks(step_times, config.world_size, config, kinds, seed))[0] for seed in range(launches)]
    peaks = {}
    for kind in kinds:
        few = with_kind(config, kind).model_copy(update={"steps": MEMORY_STEPS, "epochs": None})
        peaks[kind] = max(answers(run_ranks(peak_memory, config.world_size, few)))
    return len(times[0][0][AA]), figures(times, peaks)


def main(words: Sequence[str]) -> int:
    """Measure, print the table and write it where --output is given; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmarks.syncs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", metavar="CONFIG")
    parser.add_argument("words", nargs="*", metavar="kind=KIND[,key=value ...] or key=value")
    parser.add_argument("--output", type=Path)
    add_launches(parser)
    options = parser.parse_intermixed_args(words)
    kinds = [word.removeprefix("kind=") for word in options.words if word.startswith("kind=")] or KINDS
    rest = [word for word in options.words if not word.startswith("kind=")]

    def body() -> None:
        config = load(options.config, [*rest, "executor.kind=distributed"])
        steps, rows = measure(config, kinds, options.launches)
        plain_console(at_least=165).print(report(with_ratios(rows)))
        print(
            f"{config.model.name}, {steps} steps in turn in each of {options.launches} launches, "
            f"{config.world_size} gloo ranks, B = {config.global_batch}, policy {config.policy.kind}"
        )
        if options.output is not None:
            about = {"model": config.model.name, "num_steps": steps, "num_launches": options.launches}
            about |= {"world_size": config.world_size, "global_batch": config.global_batch}
            about |= {"policy": config.policy.kind, "device": describe()["cpu"]}
            write_json(options.output, {**about, "rows": rows})
            print(f"written to {options.output}")

    return guarded(body)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
