"""Time to a target dev loss on two gloo ranks: each arm trains from equal weights until it is reached.

Seconds are those of the slower rank from the end of the first step; dev losses are computed beside the clock. The
first arm runs twice, the second time with another order (A/A): what one order or another makes of the loss is the noise
that the others are read against.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from ddpsched.interleaved import order_of
from ddpsched.local_ranks import join_group
from experiments.benchmarks.bench import AA
from experiments.trainers.arms import ARMS, FIRST
from experiments.trainers.frozen import Reached, SeedRuns
from experiments.trainers.one_training import Training, Watch, train
from experiments.trainers.setting import GLOBAL_BATCH, Rows, Setting, padded

EPOCHS = 2  # after which an arm is given up
SHARE = 1 / 4  # of an epoch, at which random defines the target: later, where the curve is flat, noise decides
PILOTS = 3  # trainings that define it; their orders are no other's
DEV_BATCH = 128


@dataclass(frozen=True)
class Target:
    """A dev loss, and the least that each pilot met."""

    target: float
    least: list[float]


@dataclass
class Run:
    """A training that is watched until its dev loss is at or below the target, or it has seen ``limit`` samples."""

    dev: list[dict[str, Any]]
    every: int
    target: float
    limit: int
    seconds: float = 0.0
    steps: int = 0
    samples: int = 0  # of this rank
    curve: list[tuple[int, float]] = field(default_factory=list)  # samples of all ranks, and the dev loss after them
    _since: float = 0.0

    def see_batch(self, batch: dict[str, Any]) -> None:
        """Count the samples."""
        self.samples += len(batch["labels"])

    def see_step(self, model: Any) -> bool:
        """Stop the clock, evaluate every so many steps, and return whether the training ends."""
        import torch.distributed as dist

        now, ends = perf_counter(), False
        self.seconds += now - self._since if self.steps else 0.0
        self.steps += 1
        if self.steps % self.every == 0:
            samples, loss = int(_reduced(self.samples)), _from_rank_0(_dev_loss(model, self.dev))
            self.curve.append((samples, loss))
            ends = loss <= self.target or samples >= self.limit
            dist.barrier()  # ranks go on together
        self._since = perf_counter()
        return ends

    @property
    def least(self) -> float:
        """The least dev loss that was met."""
        return min((loss for _, loss in self.curve), default=math.inf)


def measure_target(setting: Setting, every: int, given: float | None) -> Target:
    """Return the dev loss that random reaches within a quarter of an epoch, a mean of three; every rank calls this.

    ``given``: a target that is to be tried instead, for two epochs.
    """
    join_group()
    rows, dev = setting.rows(), _dev_batches(setting)
    limit = int(SHARE * len(rows)) if given is None else EPOCHS * len(rows)
    target = -math.inf if given is None else given
    runs = [
        _run(setting, rows, Run(dev, every, target, limit), FIRST, seed, seed)
        for seed in range(10_000, 10_000 + PILOTS)
    ]
    least = [run.least for run in runs]
    return Target(sum(least) / len(least), least)


def measure_seed(setting: Setting, names: Sequence[str], seed: int, target: float, every: int) -> SeedRuns:
    """Return how each arm came to the target, in an order drawn by the seed; every rank calls this."""
    join_group()
    rows, dev = setting.rows(), _dev_batches(setting)
    shown, found = [names[0], AA, *names[1:]], dict[str, Reached]()
    for place in order_of(len(shown), 0, seed):
        name = FIRST if shown[place] == AA else shown[place]
        order = seed + 1_000 * (shown[place] == AA)
        run = _run(setting, rows, Run(dev, every, target, EPOCHS * len(rows)), name, order, seed)
        found[shown[place]] = Reached(
            reached=run.least <= target, seconds=round(_longest(run.seconds), 4), samples=run.curve[-1][0],
            steps=run.steps, least=run.least,
        )  # fmt: skip
    return SeedRuns(seed=seed, arms={name: found[name] for name in shown})


def _run(setting: Setting, rows: Rows, run: Run, name: str, order: int, weights: int) -> Run:
    # steps of an arm whose batches are smaller on average than the others'
    most = 2 * run.limit // GLOBAL_BATCH + run.every
    training = Training(name, most, order, weights)
    train(setting, ARMS[name], training, rows, Watch(run.see_batch, run.see_step))
    return run


def _dev_batches(setting: Setting) -> list[dict[str, Any]]:
    rows = sorted(setting.dev_rows(), key=lambda row: len(row["input_ids"]))
    return [padded(rows[first : first + DEV_BATCH]) for first in range(0, len(rows), DEV_BATCH)]


def _dev_loss(model: Any, batches: list[dict[str, Any]]) -> float:
    """Return the mean loss over the dev split; the model goes on in training mode."""
    import torch
    import torch.nn.functional as F

    model.eval()
    total, count = 0.0, 0
    with torch.no_grad():
        for batch in batches:
            logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
            total += float(F.cross_entropy(logits, batch["labels"], reduction="sum"))
            count += len(batch["labels"])
    model.train()
    return total / count


def _reduced(value: int) -> float:
    import torch
    import torch.distributed as dist

    each = torch.tensor(value)
    dist.all_reduce(each)
    return float(each)


def _from_rank_0(value: float) -> float:
    import torch
    import torch.distributed as dist

    each = torch.tensor(value, dtype=torch.float64)
    dist.broadcast(each, 0)
    return float(each)


def _longest(seconds: float) -> float:
    import torch
    import torch.distributed as dist

    each = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(each, dist.ReduceOp.MAX)
    return float(each)
