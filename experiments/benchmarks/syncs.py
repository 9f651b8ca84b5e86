"""Synchronisers side by side: step time, exposed communication and memory on real gloo ranks of this machine.

    python -m experiments.benchmarks.syncs CONFIG [kind=KIND[,key=value ...] ...] [--output FILE] [key=value ...]

`kind=naive,barrier=true` is a synchroniser and its keys; without any, those below. Ratios are to the first.
Time: in one run, each has a separate model, and step s of each follows step s of the others, in rotating turn, from a
barrier on; forward, backward and synchronisation, without the optimizer. *Exposed* is the time of a step after the last
rank has its gradients ready, which no rank's compute hides; *waiting* is the mean over ranks of the time from a rank's
gradients to the last rank's. Memory: a run for each, with its optimizer; the largest rank's peak.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich import box
from rich.table import Table

from ddpsched.cli import guarded
from ddpsched.config import RunConfig, apply_overrides, load, parse
from ddpsched.environment import describe
from ddpsched.exchange import LocalExchange
from ddpsched.local_ranks import answers, join_group, run_ranks
from ddpsched.planning.planner import num_steps, plan_steps
from ddpsched.records import write_json
from ddpsched.terminal import plain_console
from experiments.benchmarks.steps import LEFT_OUT, ratio, ratio_text

KINDS = ("ddp", "naive", "overlap", "bucketed")
MEMORY_STEPS = 6
Stamps = npt.NDArray[np.int64]  # (steps, ranks, 5): began, ready, done in ns of one clock; messages, bytes


def with_kind(config: RunConfig, kind: str) -> RunConfig:
    """Return the config with this synchroniser. Raises ConfigError for one that is not valid."""
    name, *keys = kind.split(",")
    return parse({**config.model_dump(), "sync": apply_overrides({"kind": name}, keys)}, source=f"kind={kind}")


def step_times(config: RunConfig, kinds: Sequence[str]) -> dict[str, Stamps]:
    """Return the stamps of all ranks by synchroniser. Runs on each rank."""
    learners, plans, exchange, world = _start(config, kinds)
    stamps: dict[str, list[Any]] = {kind: [] for kind in kinds}
    offset_s = exchange.clock_offsets()[world.rank].offset_s
    for plan in plans:
        for turn in range(len(kinds)):
            kind = kinds[(plan.step + turn) % len(kinds)]
            learner = learners[kind]
            exchange.barrier()
            step = learner.run(plan.ranks[world.rank], lambda batch=plan.global_batch: 1.0 / batch, seed=plan.step)
            learner.optimiser.clear()
            marks = [learner.clock.host_s(mark) + offset_s for mark in (step.begin, step.ready, step.done)]
            sent = [len(step.collectives), sum(c.num_bytes for c in step.collectives)]
            row = np.array([*np.rint(np.array(marks) * 1e9), *sent], dtype=np.int64)
            stamps[kind].append(exchange.vote(row[None]))
    return {kind: np.stack(rows[LEFT_OUT:]) for kind, rows in stamps.items()}


def peak_memory(config: RunConfig) -> int:
    """Return this rank's largest peak of a step with its optimizer, in bytes. Runs on each rank."""
    learners, plans, _, world = _start(config, [config.sync.kind])
    (learner,) = learners.values()
    peaks = []
    for plan in plans:
        step = learner.run(plan.ranks[world.rank], lambda batch=plan.global_batch: 1.0 / batch, seed=plan.step)
        learner.optimiser.gradient_norm()
        learner.optimiser.step()
        peaks.append(step.peak_memory_bytes or 0)
    return max(peaks[1:])


def _start(config: RunConfig, kinds: Sequence[str]) -> Any:
    from ddpsched.training.clock import pick_device
    from ddpsched.training.group_exchange import GroupExchange
    from ddpsched.training.learner import Learner
    from ddpsched.world import World

    join_group(config.executor.timeout_s)
    world, samples = World.detect(), config.load_samples()
    spec = config.plan_spec()
    steps = num_steps(spec, samples.train)
    learners = {}
    for kind in kinds:
        kind_config = config if kind == config.sync.kind else with_kind(config, kind)
        learner = Learner(kind_config, samples, pick_device(kind_config, world.local_rank), synchronised=True)
        learner.optimiser.schedule(steps)
        learner.forward = learner.sync.module
        learners[kind] = learner
    plans = plan_steps(spec, samples.train, LocalExchange(world.size))
    return learners, plans, GroupExchange(world, config.executor.timeout_s), world


def figures(stamps: dict[str, Stamps], peaks: dict[str, int]) -> list[dict[str, Any]]:
    """Return a row for each synchroniser, in seconds and bytes; ``ratio`` is its step over the first one's."""
    rows: list[dict[str, Any]] = []
    base: npt.NDArray[np.float64] | None = None
    for kind, table in stamps.items():
        began, ready, done = (table[:, :, column] / 1e9 for column in range(3))
        step = done.max(axis=1) - began.min(axis=1)
        base = step if base is None else base
        rows.append(
            {
                "kind": kind,
                "step_s": float(step.mean()),
                "ratio": ratio(base, step) if rows else None,
                "compute_s": float((ready - began).max(axis=1).mean()),
                "waiting_s": float((ready.max(axis=1, keepdims=True) - ready).mean()),
                "exposed_s": float((done.max(axis=1) - ready.max(axis=1)).mean()),
                "exposed_share": float((done.max(axis=1) - ready.max(axis=1)).sum() / step.sum()),
                "num_messages": int(np.median(table[:, :, 3])),
                "num_bytes": int(np.median(table[:, :, 4])),
                "peak_memory_bytes": peaks[kind],
                "memory_ratio": peaks[kind] / next(iter(peaks.values())),
            }
        )
    return rows


def report(rows: Sequence[dict[str, Any]]) -> Table:
    """Return the rows as a table for the terminal."""
    first = rows[0]["kind"]
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
    for row in rows:
        table.add_row(
            row["kind"],
            f"{row['step_s']:.3f}",
            ratio_text(row["ratio"]),
            f"{row['compute_s']:.3f}",
            f"{row['waiting_s']:.3f}",
            f"{row['exposed_s']:.3f}",
            f"{row['exposed_share']:.1%}",
            str(row["num_messages"]),
            f"{row['num_bytes'] / 1e6:.0f}",
            f"{row['peak_memory_bytes'] / 1e9:.3f} GB",
            f"{row['memory_ratio']:.3f}",
        )
    return table


def measure(config: RunConfig, kinds: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows: times from one group of ranks, memory from a group for each synchroniser."""
    stamps = answers(run_ranks(step_times, config.world_size, config, list(kinds)))[0]
    peaks = {}
    for kind in kinds:
        few = with_kind(config, kind).model_copy(update={"steps": MEMORY_STEPS, "epochs": None})
        peaks[kind] = max(answers(run_ranks(peak_memory, config.world_size, few)))
    return figures(stamps, peaks)


def main(words: Sequence[str]) -> int:
    """Measure, print the table and write it where --output is given; return the exit code."""
    words = list(words)
    output: Path | None = None
    if "--output" in words:
        at = words.index("--output")
        output = Path(words[at + 1])
        del words[at : at + 2]
    kinds = tuple(word.removeprefix("kind=") for word in words if word.startswith("kind=")) or KINDS
    rest = [word for word in words if not word.startswith("kind=")]
    if not rest:
        print(__doc__.strip(), file=sys.stderr)
        return 2

    def body() -> None:
        config = load(rest[0], [*rest[1:], "executor.kind=distributed"])
        rows = measure(config, kinds)
        plain_console(at_least=140).print(report(rows))
        steps = (config.steps or 0) - LEFT_OUT
        print(
            f"{config.model.name}, {steps} interleaved steps, {config.world_size} gloo ranks, "
            f"B = {config.global_batch}, policy {config.policy.kind}"
        )
        if output is not None:
            about = {"model": config.model.name, "num_steps": steps, "world_size": config.world_size}
            about |= {"global_batch": config.global_batch, "policy": config.policy.kind, "device": describe()["cpu"]}
            write_json(output, {**about, "rows": rows})
            print(f"written to {output}")

    return guarded(body)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
