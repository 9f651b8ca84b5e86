"""Step times on two gloo ranks, arms in blocks in turn, the first one twice (A/A), and errors of first gradients.

A step lasts on the slower rank, from one optimizer step to the next, loading included; a block's first step is left
out. group_by_length sorts 25 steps' samples at a time, from long to short: so with Trainer's own samplers the blocks
are spread over the epoch's first 25 steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import numpy.typing as npt

from ddpsched.local_ranks import join_group
from experiments.benchmarks.bench import AA, in_turn
from experiments.trainers.arms import ARMS, FIRST, ODB
from experiments.trainers.frozen import Launch
from experiments.trainers.gradients import flat, relative_error
from experiments.trainers.one_training import Training, Watch, train
from experiments.trainers.setting import Rows, Setting, samples_in

CYCLE = 25  # steps that group_by_length sorts together, from long to short: 50 batches of a rank
LEFT_OUT = 1  # rounds
COLLECTIVE_S = 600.0  # rank 1 waits for rank 0's gradients in one process


@dataclass
class Block:
    """A block of an arm as this rank saw it: ends of steps, samples of each, the first step's and their gradient."""

    wants_gradient: bool
    ends: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=lambda: [0])
    first: Rows = field(default_factory=list)
    gradient: npt.NDArray[Any] | None = None

    def see_batch(self, batch: dict[str, Any]) -> None:
        """Count the samples."""
        self.counts[-1] += len(batch["labels"])
        if self.wants_gradient and not self.ends:
            self.first += samples_in(batch)

    def see_gradient(self, model: Any) -> None:
        """Keep the first step's gradient."""
        if self.wants_gradient and not self.ends:
            self.gradient = flat(model)

    def see_step(self, model: Any) -> bool:
        """Note the time; never end."""
        self.ends.append(perf_counter())
        self.counts.append(0)
        return False


def measure_launch(setting: Setting, names: Sequence[str], steps: int, rounds: int, seed: int) -> Launch:
    """Return one launch, of which rank 0's errors count; every rank calls this."""
    join_group(COLLECTIVE_S)
    rows, turns = setting.rows(), dict[str, int]()
    samples, errors, takes = dict[str, list[int]](), dict[str, float](), set[str]()

    def block(name: str, turn: int, max_steps: int, exact: bool = True) -> Block:
        arm = ARMS[name]
        seen = Block(wants_gradient=turn == 0)
        samples_itself = not arm.policy and name != ODB
        skip = turn * CYCLE // rounds if samples_itself else 0
        training = Training(name, max_steps, 1000 * seed + turn, skip=skip, exact=exact)
        takes.add(train(setting, arm, training, rows, Watch(seen.see_batch, seen.see_step, seen.see_gradient)))
        return seen

    def timed(shown: str, name: str) -> float:
        turn = turns[shown] = turns.get(shown, -1) + 1
        seen = block(name, turn, steps + 1)
        if turn == 0 and shown != AA:
            errors[name] = _error(setting, seen)
        seconds, count = _over_ranks(seen.ends[-1] - seen.ends[0], sum(seen.counts[1:]))
        samples.setdefault(shown, []).append(count)
        return seconds / steps

    arms = {name: partial(timed, name, name) for name in names}
    arms[AA] = partial(timed, AA, FIRST)
    seconds = in_turn(arms, rounds, seed, LEFT_OUT)
    own = {
        name: _error(setting, block(name, 0, 1, exact=False)) for name in names if not ARMS[name].policy
    }  # fmt: skip
    return Launch(
        seed=seed,
        seconds={name: [round(each, 6) for each in times.tolist()] for name, times in seconds.items()},
        samples={name: counts[LEFT_OUT:] for name, counts in samples.items()},
        errors=errors,
        own_errors=own,
        auto=next(iter(takes - {""}), None),
    )


def _error(setting: Setting, seen: Block) -> float:
    import torch.distributed as dist

    ranks: list[Any] = [None, None]
    dist.all_gather_object(ranks, seen.first)
    error = [0.0]
    if dist.get_rank() == 0:
        assert seen.gradient is not None, "the block had a step"
        error = [relative_error(setting, seen.gradient, [row for rank in ranks for row in rank])]
    dist.broadcast_object_list(error)
    return error[0]


def _over_ranks(seconds: float, samples: int) -> tuple[float, int]:
    """Return the longest of the ranks' seconds, and the sum of their samples."""
    import torch
    import torch.distributed as dist

    longest, count = torch.tensor(seconds, dtype=torch.float64), torch.tensor(samples)
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    dist.all_reduce(count)
    return float(longest), int(count)
