"""Whether every sample is trained exactly once, whatever is killed, and on however little data: planning alone.

``python -m experiments.reliability.exactly_once kills [--count 100000] [--seed 0]``: runs of random data, policies and
sizes are killed at random steps, go back to their last checkpoint, and go on with another number of ranks.
``python -m experiments.reliability.exactly_once small``: every N up to three samples a rank, up to 8 ranks, all B and
K. A trial is exact, or is refused by one message. Both print counts; the exit code is 0 only where nothing was lost or
repeated.
"""

import itertools
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import typer

from ddpsched.data.lengths import KnownLengths
from ddpsched.errors import ConfigError, DataError, InfeasibleError
from ddpsched.exchange import LocalExchange
from ddpsched.planning.plan_spec import PlanSpec
from ddpsched.planning.planner import plan_steps
from ddpsched.planning.policies import POLICIES
from ddpsched.step_plan import StepPlan
from experiments.reliability.findings import Finding, Freeze, report

LONGEST = 40  # tokens of a sample
KINDS = ("static", "minmax", "balanced", "packed", "token_budget", "bins", "pool")
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@dataclass
class Tally:
    """Counts over trials: ``kills`` survived, ``refused`` trials, samples ``lost`` and ``repeated``."""

    trials: int = 0
    kills: int = 0
    refused: int = 0
    lost: int = 0
    repeated: int = 0

    @property
    def is_exact(self) -> bool:
        """Whether nothing was lost or repeated."""
        return not self.lost and not self.repeated


def options(kind: str, global_batch: int, prefetch: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return a policy's options for a trial; ``prefetch``: K, samples that wait at a rank."""
    if kind == "minmax":
        return {"kind": kind, "prefetch": prefetch}
    if kind in ("balanced", "packed"):
        micro = {"max_microbatches": int(rng.integers(1, 4))} if kind == "balanced" else {}
        return {"kind": kind, "lookahead": int(rng.integers(1, 4)), **micro}
    if kind == "static":
        return {"kind": kind}
    per_step = {"batches_per_optimizer_step": int(rng.integers(1, 3))}
    if kind == "bins":
        return {"kind": kind, "median_batch": max(1, global_batch // 4), **per_step}
    budget = {"max_tokens_for_batch": int(rng.integers(LONGEST, 4 * LONGEST))}
    more = {"pool_size": prefetch, "sequence_packing": bool(rng.integers(2))} if kind == "pool" else {}
    return {"kind": kind, **budget, **per_step, **more}


def killed_run(rng: np.random.Generator, tally: Tally, wanted: int) -> None:
    """Run one epoch or two, killed up to ``wanted`` times; count what was lost and repeated."""
    size, ranks = int(rng.integers(1, 120)), int(rng.integers(1, 9))
    global_batch, prefetch = int(rng.integers(ranks, ranks + 24)), int(rng.integers(1, 24))
    prefetch = max(prefetch, global_batch)  # the window of a single rank must hold a step, too
    kind = KINDS[int(rng.integers(len(KINDS)))]
    lengths = KnownLengths(rng.integers(1, LONGEST + 1, size))
    policy = POLICIES[kind](**options(kind, global_batch, prefetch, rng))
    epochs = int(rng.integers(1, 3))
    spec = PlanSpec(ranks, global_batch, policy, int(rng.integers(100)), epochs=epochs, batch_ranks=ranks)
    every, position, before = int(rng.integers(1, 5)), None, ranks
    kept: list[StepPlan] = []  # steps before the last checkpoint
    for kill in range(wanted + 1):
        last = kill == wanted
        at = None if last else int(rng.integers(0, 8))  # steps after this start
        written: list[StepPlan] = []
        ended = True
        for plan in plan_steps(spec, lengths, LocalExchange(spec.world_size), start=position, ranks_before=before):
            if at is not None and len(written) == at:
                ended = False
                break
            written.append(plan)
        if ended:
            kept += written
            break
        tally.kills += 1
        whole = (len(kept) + len(written)) // every * every - len(kept)  # what the last checkpoint holds
        kept += written[: max(0, whole)]
        if kept:
            position, before = kept[-1].after, kept[-1].world_size
            assert position is not None
        spec = replace(spec, world_size=int(rng.integers(1, min(8, global_batch) + 1)))
    _count(kept, size, epochs, tally)


def _count(plans: list[StepPlan], size: int, epochs: int, tally: Tally) -> None:
    for epoch in range(epochs):
        ids = np.concatenate([np.empty(0, np.int64), *(plan.ids for plan in plans if plan.epoch == epoch)])
        counts = np.bincount(ids, minlength=size)
        tally.lost += int((counts == 0).sum())
        tally.repeated += int((counts > 1).sum())


def small_run(kind: str, size: int, ranks: int, global_batch: int, prefetch: int, tally: Tally) -> None:
    """Plan two epochs of so little data, or have them refused by one of the package's errors."""
    rng = np.random.default_rng([size, ranks, global_batch, prefetch])
    tally.trials += 1
    try:
        lengths = KnownLengths(rng.integers(1, LONGEST + 1, size))
        policy = POLICIES[kind](**options(kind, global_batch, prefetch, rng))
        spec = PlanSpec(ranks, global_batch, policy, epochs=2)
        plans = list(plan_steps(spec, lengths, LocalExchange(ranks)))
    except (ConfigError, DataError, InfeasibleError):
        tally.refused += 1
        return
    _count(plans, size, 2, tally)


@app.command()
def kills(
    count: Annotated[int, typer.Option(min=1, help="kills in all")] = 100_000,
    seed: Annotated[int, typer.Option(min=0, help="of the trials")] = 0,
    freeze: Freeze = False,
) -> None:
    """Kill runs at random steps and go on with another number of ranks."""
    tally, trial = Tally(), 0
    while tally.kills < count:
        rng = np.random.default_rng([seed, trial])
        trial += 1
        tally.trials += 1
        try:
            killed_run(rng, tally, wanted=int(rng.integers(1, 6)))
        except InfeasibleError:
            tally.refused += 1
    finding = Finding(
        "planned_kills",
        "Simulated kills, another world size after each",
        "0 samples lost, 0 repeated",
        f"{tally.kills:,} kills in {tally.trials:,} runs ({tally.refused:,} refused): "
        f"{tally.lost} samples lost, {tally.repeated} repeated",
        tally.is_exact,
        f"python -m experiments.reliability.exactly_once kills --count {count} --seed {seed}",
    )
    raise typer.Exit(report(finding, freeze))


@app.command()
def small(
    most: Annotated[int, typer.Option(min=1, help="ranks, from 1 on")] = 8,
    freeze: Freeze = False,
) -> None:
    """Plan every N up to three samples a rank, with all B and K."""
    tally = Tally()
    for ranks in range(1, most + 1):
        for size, global_batch in itertools.product(range(3 * ranks + 1), range(1, 3 * ranks + 2)):
            for kind in KINDS:
                for prefetch in range(1, 3 * ranks + 1) if kind in ("minmax", "pool") else (1,):
                    small_run(kind, size, ranks, global_batch, prefetch, tally)
    finding = Finding(
        "small_data",
        "Every N up to three samples a rank, all B and K",
        "exact or a clear error, no hang",
        f"{tally.trials:,} runs on up to {most} ranks, {tally.refused:,} refused with a reason; of the others "
        f"{tally.lost} samples lost and {tally.repeated} repeated",
        tally.is_exact,
        f"python -m experiments.reliability.exactly_once small --most {most}",
    )
    raise typer.Exit(report(finding, freeze))


if __name__ == "__main__":
    app()
