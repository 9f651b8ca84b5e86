"""The yardstick: one set of figures for every policy and peer, from its steps and the lengths alone.

The yardstick, over an epoch, is what the slowest ranks pay against what the real tokens need:

    sum over steps of max_r cost(rank r)  /  (sum over samples of sample cost / G)

1.0 is no padding and perfect balance.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np
import numpy.typing as npt

from ddpsched.costs.cost_model import CostModel, Int

# A step as any batcher gives it: the micro-batches of each rank, as sample ids
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


class Ruler:
    """Adds up steps, epoch by epoch, and reads the figures off.

    ``lengths``: (N,), of all samples. ``cost`` is what the yardstick charges; ``packed``: whether rows hold no
    padding, and cost the sum over their samples. ``time``: a cost in nanoseconds for the predicted step time.
    """

    def __init__(
        self, lengths: Int, world_size: int, cost: CostModel, packed: bool = False, time: CostModel | None = None
    ) -> None:
        self._lengths, self._size, self._packed = lengths, world_size, packed
        self._cost, self._time = cost, time
        self._epochs = 0
        self._seen = np.zeros(len(lengths), dtype=np.int64)
        self._largest = self._all = self._needed = self._tokens = self._computed = self._microbatches = 0
        self._nanoseconds = 0
        self._dropped = self._repeated = 0
        self._sizes: list[int] = []
        self._full_sizes: list[int] = []
        self._sums: list[float] = []
        self._squares = 0.0

    def add_epoch(self, steps: Iterable[Step], pad_to: Iterable[int] = repeat(0)) -> None:
        """All steps of one epoch. ``pad_to``: of each step, a length that its rows are padded to at least."""
        self._seen[:] = 0
        first = len(self._sizes)
        for step, width in zip(steps, pad_to, strict=False):
            self._add(step, width)
        self._full_sizes += self._sizes[first:-1]
        self._epochs += 1
        self._dropped += int((self._seen == 0).sum())
        self._repeated += int(np.maximum(self._seen - 1, 0).sum())

    def _add(self, step: Step, pad_to: int) -> None:
        sizes = [[len(ids) for ids in own] for own in step]
        counts = np.array([size for own in sizes for size in own if size])
        ids = np.concatenate([ids for own in step for ids in own])
        np.add.at(self._seen, ids, 1)
        lengths = self._lengths[ids]
        longest = np.maximum(np.maximum.reduceat(lengths, np.cumsum(counts) - counts), pad_to)
        costs = self._cost.price_ranks(lengths, sizes, self._packed, pad_to)
        self._largest += max(costs)
        self._all += sum(costs)
        self._needed += int(self._cost.unpadded(lengths).sum())
        self._tokens += int(lengths.sum())
        self._computed += int(lengths.sum() if self._packed else (counts * longest).sum())
        self._microbatches += len(counts)
        if self._time is not None:
            self._nanoseconds += max(self._time.price_ranks(lengths, sizes, self._packed, pad_to))
        self._sizes.append(len(ids))
        self._sums.append(float(lengths.sum()))
        self._squares += float((lengths.astype(np.float64) ** 2).sum())

    def read(self) -> Yardstick:
        """The figures of all epochs added so far; at least one."""
        sizes = np.array(self._full_sizes or self._sizes, dtype=np.float64)
        steps = len(self._sizes)
        return Yardstick(
            yardstick=self._largest / (self._needed / self._size),
            padding_efficiency=self._tokens / self._computed,
            imbalance=self._largest / (self._all / self._size),
            order_bias=self._order_bias(),
            dropped=-(-self._dropped // self._epochs),
            repeated=-(-self._repeated // self._epochs),
            steps=steps // self._epochs,
            samples_cv=float(sizes.std() / sizes.mean()),
            microbatches=self._microbatches / (steps * self._size),
            step_seconds=self._nanoseconds / steps / 1e9 if self._time is not None else None,
        )

    def _order_bias(self) -> float:
        """ICC(1) of a one-way random-effects analysis of variance: steps are the classes, lengths what is measured.

        (MSB - MSW) / (MSB + (n0 - 1) MSW), where MSB and MSW are the mean squares between and within steps and n0
        the mean size of a step, corrected for their spread. Source: Donner (1986), International Statistical Review 54.
        """
        sizes, sums = np.array(self._sizes, dtype=np.float64), np.array(self._sums)
        total, steps = sizes.sum(), len(sizes)
        if steps < 2 or total <= steps:
            return float("nan")
        between = float((sums**2 / sizes).sum() - sums.sum() ** 2 / total)
        within = self._squares - float((sums**2 / sizes).sum())
        n0 = (total - (sizes**2).sum() / total) / (steps - 1)
        msb, msw = between / (steps - 1), within / (total - steps)
        return (msb - msw) / (msb + (n0 - 1) * msw) if msb or msw else 0.0
