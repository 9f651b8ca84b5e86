"""Yardstick: one set of figures for every policy and peer, from its steps and the lengths alone.

The yardstick, over an epoch, is the cost of the slowest ranks against the cost of the real tokens:

    sum over steps of max_r cost(rank r)  /  (sum over samples of sample cost / G)

1.0 is no padding and perfect balance.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import repeat, zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt

from ddpsched.costs.cost_model import CostModel, Int
from ddpsched.parts import finish_times
from ddpsched.step_plan import Microbatch

# A step of any batcher: the micro-batches of each rank, as sample ids
Step = Sequence[Sequence[npt.NDArray[np.int64]]]


@dataclass(frozen=True)
class Yardstick:
    """Figures over one or more epochs; None where a figure has no meaning for the cost or the batcher."""

    yardstick: float
    padding_efficiency: float  # real tokens / tokens computed
    imbalance: float  # sum of the largest rank's cost / sum of the mean rank's
    order_bias: float  # intra-class correlation of length within the global batch: 0 as shuffled, 1 as sorted
    dropped: int  # samples of the data that no step had, per epoch, rounded up
    repeated: int  # samples that were run again, per epoch, rounded up
    steps: int  # per epoch
    samples_cv: float  # standard deviation of samples per step / their mean, the last step of an epoch left out
    microbatches: float  # mean of a rank in a step
    step_seconds: float | None = None  # mean of the largest rank's predicted time
    split: float | None = None  # share of the samples that are split over ranks
    gathered: float | None = None  # sum of the largest rank's cost of gathering keys and values / an even share


class Ruler:
    """The sums over steps, added epoch by epoch, from which the figures are read.

    ``lengths``: (N,), of all samples. ``cost``: of the yardstick. ``packed``: whether rows hold no padding, and cost
    the sum over their samples. ``time``: a cost in nanoseconds for the predicted step time. ``lockstep``: ranks run
    their m-th micro-batches together, so a step costs the sum over these of the slowest rank's.

    >>> ruler = Ruler(np.array([2, 4]), 1, CostModel(0, 1, 0, scale=1))
    >>> ruler.add_epoch([[[np.array([0, 1])]]])
    >>> round(ruler.read().yardstick, 3)
    1.333
    """

    def __init__(
        self, lengths: Int, world_size: int, cost: CostModel, packed: bool = False, time: CostModel | None = None,
        lockstep: bool = False,
    ) -> None:  # fmt: skip
        self._lengths, self._size, self._packed, self._lockstep = lengths, world_size, packed, lockstep
        self._cost, self._time = cost, time
        self._epochs = self._dropped = self._repeated = 0
        self._seen = np.zeros(len(lengths), dtype=np.int64)
        self._full_sizes: list[int] = []
        self._batches = blake2b(digest_size=16)  # over the samples of each step, whichever rank has them
        # samples, micro-batches, tokens, tokens squared, tokens computed, nanoseconds, and the cost of the largest
        # rank, of all ranks, and without padding
        self._steps: list[tuple[int, ...]] = []

    def add_epoch(self, steps: Iterable[Step], pad_to: Iterable[int] = repeat(0)) -> None:
        """Add all steps of one epoch. ``pad_to``: of each step, a length that its rows are padded to at least."""
        self._seen[:] = 0
        first = len(self._steps)
        for step, width in zip(steps, pad_to, strict=False):
            ids, row = self._measured(step, width)
            np.add.at(self._seen, ids, 1)
            self._batches.update(np.append(np.sort(ids), -1).astype("<i8").tobytes())
            self._steps.append(row)
        self._full_sizes += [samples for samples, *_ in self._steps[first:-1]]
        self._epochs += 1
        self._dropped += int((self._seen == 0).sum())
        self._repeated += int(np.maximum(self._seen - 1, 0).sum())

    def _measured(self, step: Step, width: int) -> tuple[Int, tuple[int, ...]]:
        """Return the ids of a step, and its sums."""
        sizes = [[len(ids) for ids in rank] for rank in step]
        counts = np.array([size for rank in sizes for size in rank if size])
        ids = np.concatenate([ids for rank in step for ids in rank])
        lengths = self._lengths[ids]
        tokens = computed = int(lengths.sum())
        if not self._packed:
            longest = np.maximum(np.maximum.reduceat(lengths, np.cumsum(counts) - counts), width)
            computed = int(self._cost.computed(counts, longest).sum())
        costs = self._cost.price_ranks(lengths, sizes, self._packed, width)
        slowest = self._slowest(self._cost, lengths, sizes, width)
        time = 0 if self._time is None else self._slowest(self._time, lengths, sizes, width)
        needed, squares = int(self._cost.unpadded(lengths).sum()), int(lengths @ lengths)
        return ids, (len(ids), len(counts), tokens, squares, computed, time, slowest, sum(costs), needed)

    def _slowest(self, cost: CostModel, lengths: Int, sizes: Sequence[Sequence[int]], width: int) -> int:
        """Return what a step costs: the largest rank's, in lockstep summed over micro-batches."""
        if not self._lockstep:
            return max(cost.price_ranks(lengths, sizes, self._packed, width))
        by_rank = cost.price_microbatches(lengths, sizes, self._packed, width)
        return sum(map(max, zip_longest(*by_rank, fillvalue=0)))

    @property
    def batches(self) -> str:
        """A digest, equal for arms whose steps have the same samples, and so the same gradient."""
        return self._batches.hexdigest()

    def read(self) -> Yardstick:
        """Return the figures of all epochs added so far; at least one."""
        sums = [sum(column) for column in zip(*self._steps, strict=True)]
        _, microbatches, tokens, _, computed, nanoseconds, largest, total, needed = sums
        steps = len(self._steps)
        sizes = np.array(self._full_sizes or [samples for samples, *_ in self._steps], dtype=np.float64)
        return Yardstick(
            yardstick=largest / (needed / self._size),
            padding_efficiency=tokens / computed,
            imbalance=largest / (total / self._size),
            order_bias=self._order_bias(),
            dropped=-(-self._dropped // self._epochs),
            repeated=-(-self._repeated // self._epochs),
            steps=steps // self._epochs,
            samples_cv=float(sizes.std() / sizes.mean()),
            microbatches=microbatches / (steps * self._size),
            step_seconds=nanoseconds / steps / 1e9 if self._time is not None else None,
        )

    def _order_bias(self) -> float:
        """Return ICC(1) of a one-way random-effects analysis of variance: steps are the classes, lengths the values.

        (MSB - MSW) / (MSB + (n0 - 1) MSW), where MSB and MSW are the mean squares between and within steps and n0
        the mean size of a step, corrected for their spread. Source: Donner (1986), International Statistical Review 54.
        """
        sizes, _, sums, squares = np.array([step[:4] for step in self._steps], dtype=np.float64).T
        total, steps = sizes.sum(), len(sizes)
        if steps < 2 or total <= steps:
            return float("nan")
        between = float((sums**2 / sizes).sum() - sums.sum() ** 2 / total)
        within = float(squares.sum()) - float((sums**2 / sizes).sum())
        n0 = (total - (sizes**2).sum() / total) / (steps - 1)
        msb, msw = between / (steps - 1), within / (total - steps)
        return (msb - msw) / (msb + (n0 - 1) * msw) if msb or msw else 0.0


class SplitRuler(Ruler):
    """The same for steps in which samples are split over ranks, each step as :class:`Microbatch` of each rank.

    Parts of a sample begin together, so a step costs what its last rank is done at, with waiting for them counted. The
    cost of gathering keys and values is not part of that: it is a figure of its own.

    >>> from ddpsched.parts import head_and_tail
    >>> ruler = SplitRuler(np.array([8, 2]), 2, CostModel(0, 1, 0, scale=1), packed=True)
    >>> parts = [Microbatch([0], packed=True, part=part) for part in head_and_tail(8, 2)]
    >>> ruler.add_epoch([[[parts[0], Microbatch([1], packed=True)], [parts[1]]]])
    >>> ruler.read().yardstick, ruler.read().split
    (1.2, 0.5)
    """

    _gathered = _split = 0

    def _measured(self, step: Any, width: int) -> tuple[Int, tuple[int, ...]]:
        micros: list[list[Microbatch]] = step
        counted = [micro.counted for rank in micros for micro in rank]
        ids = np.concatenate(counted)
        lengths, number = self._lengths[ids], sum(map(len, micros))
        tokens, squares = int(lengths.sum()), int(lengths @ lengths)
        slowest, total = self._makespan(self._cost, micros)
        time = 0 if self._time is None else self._makespan(self._time, micros)[0]
        gathered = [
            sum(self._cost.gather(int(self._lengths[micro.ids[0]]), micro.part.count) for micro in rank if micro.part)
            for rank in micros
        ]
        self._gathered += max(gathered)
        self._split += sum(micro.part is not None and micro.part.is_counted for rank in micros for micro in rank)
        needed = int(self._cost.unpadded(lengths).sum())
        return ids, (len(ids), number, tokens, squares, tokens, time, slowest, total, needed)

    def _makespan(self, cost: CostModel, micros: list[list[Microbatch]]) -> tuple[int, int]:
        """Return when the last rank is done, and the sum of all costs without waiting."""
        priced = [
            [(cost.price(micro, self._lengths[micro.ids]), int(micro.ids[0]) if micro.part else None) for micro in rank]
            for rank in micros
        ]
        return max(finish_times(priced)), sum(price for rank in priced for price, _ in rank)

    def read(self) -> Yardstick:
        """Return the figures, with those of splitting."""
        samples, *_, needed = (sum(column) for column in zip(*self._steps, strict=True))
        gathered = self._gathered / (needed / self._size) if self._cost.prices_gathering else None
        return replace(super().read(), split=self._split / samples, gathered=gathered)


class GroupsRuler(SplitRuler):
    """The same for steps of groups that run in turn, with a barrier after each: a step is the :class:`Microbatch` of
    each rank of each group, and costs the sum over groups of what the last rank is done at.

    >>> ruler = GroupsRuler(np.array([8, 2, 6]), 2, CostModel(0, 1, 0, scale=1), packed=True)
    >>> long, short, last = (Microbatch([id], packed=True) for id in range(3))
    >>> ruler.add_epoch([[[[long], [short]], [[last], []]]])
    >>> ruler.read().yardstick
    1.75
    """

    def _measured(self, step: Any, width: int) -> tuple[Int, tuple[int, ...]]:
        measured = [SplitRuler._measured(self, group, width) for group in step]
        rows = zip(*(row for _, row in measured), strict=True)
        return np.concatenate([ids for ids, _ in measured]), tuple(map(sum, rows))
