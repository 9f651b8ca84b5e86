"""Balance: which rank runs which samples of one batch, in which micro-batches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ddpsched.costs.cost_model import Int
from ddpsched.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 16  # ranks with a bar of their own
WIDTH = 40  # of the longest bar


@dataclass(frozen=True, eq=False, repr=False)
class Balance:
    """Samples of one batch on ranks, as :func:`balance` returns them.

    ``ranks[r][m]``: int64 positions of the m-th micro-batch of rank r, rising. ``lengths``: (B,). ``costs``: (G,), what
    each rank pays, its barriers' waits left out. ``makespan``: what the step takes: the largest of the costs, or with
    ``lockstep`` the sum over micro-batches of the slowest rank's. ``lower_bound``: no division of these samples takes
    less. ``packed``: micro-batches are rows without padding. ``stand_ins``: ranks without samples, each of which runs
    the shortest one at weight 0.

    >>> from ddpsched import balance
    >>> found = balance([5, 60, 7, 8, 30, 6, 9, 10], world_size=2)
    >>> found.counts.tolist(), found.costs.tolist(), found.lower_bound
    ([2, 6], [67, 68], 68)
    """

    ranks: tuple[tuple[Int, ...], ...]
    lengths: Int
    costs: Int
    makespan: int
    lower_bound: int
    packed: bool
    lockstep: bool = False
    stand_ins: frozenset[int] = frozenset()

    @property
    def world_size(self) -> int:
        """The number of ranks, G."""
        return len(self.ranks)

    @cached_property
    def counts(self) -> Int:
        """The samples of each rank, (G,); 0 for one that has a stand-in."""
        return np.array(
            [0 if r in self.stand_ins else sum(map(len, micros)) for r, micros in enumerate(self.ranks)], dtype=np.int64
        )

    @property
    def gap(self) -> float:
        """``makespan`` over ``lower_bound``, less 1: by how much another division could be better at most."""
        return self.makespan / self.lower_bound - 1

    @cached_property
    def reorder(self) -> Int:
        """(B,): ``batch[reorder]`` has the samples rank by rank, micro-batch by micro-batch."""
        parts = [micro for r, micros in enumerate(self.ranks) if r not in self.stand_ins for micro in micros]
        return np.concatenate(parts)

    @cached_property
    def restore(self) -> Int:
        """(B,): ``batch[reorder][restore]`` is ``batch``."""
        found = np.empty_like(self.reorder)
        found[self.reorder] = np.arange(len(found))
        return found

    def sum_scale(self, weights: npt.ArrayLike | None = None, rank: int | None = None) -> float:
        """Return G / sum of ``weights``: the factor of *summed* losses where gradients are averaged over ranks.

        ``weights``: (B,), of each sample in the mean that is meant: its label tokens for the mean over tokens; 1
        without them, for the mean over samples. ``rank``: 0 for one that runs a stand-in. Raises DataError for weights
        that are no numbers, negative, or all 0.
        """
        if rank in self.stand_ins:
            return 0.0
        if weights is None:
            return self.world_size / len(self.lengths)
        if hasattr(weights, "detach"):
            weights = weights.detach().cpu().numpy()
        given = np.asarray(weights, dtype=np.float64)
        if given.shape != self.lengths.shape:
            raise DataError(
                f"sum_scale: weights of shape {given.shape}, needs {self.lengths.shape}, one for each sample"
            )
        wrong = ~np.isfinite(given) | (given < 0)
        if wrong.any() or not given.any():
            which = f"weight {int(wrong.argmax())} is {given[wrong.argmax()]}" if wrong.any() else "all weights are 0"
            raise DataError(f"sum_scale: {which}; give numbers of 0 or more, at least one above 0")
        return float(self.world_size / given.sum())

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each sample, stand-ins left out: position, length, rank, micro-batch."""
        import pandas as pd

        places = [
            (position, r, m)
            for r, micros in enumerate(self.ranks)
            if r not in self.stand_ins
            for m, micro in enumerate(micros)
            for position in micro.tolist()
        ]
        frame = pd.DataFrame(places, columns=["position", "rank", "microbatch"])
        frame.insert(1, "length", self.lengths[frame["position"].to_numpy()])
        return frame

    def __repr__(self) -> str:
        counts = sorted({len(each) for each in self.ranks})
        many = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
        kind = ("row" if self.packed else "padded micro-batch") + ("s" if self.packed else "es") * (counts[-1] > 1)
        lines = [
            f"Balance of {len(self.lengths):,} samples: {self.world_size} ranks, {many} {kind} each"
            f"{' in lockstep' * self.lockstep}, makespan {self.makespan:,}, {self.gap:.2%} above the bound"
        ]
        shown = range(self.world_size) if self.world_size <= SHOWN else self._extremes()
        lines += [self._bar(r) for r in shown]
        if self.world_size > SHOWN:
            lines.append(f"({self.world_size - len(shown)} ranks between these are not shown)")
        return "\n".join(lines)

    def _extremes(self) -> list[int]:
        order = np.argsort(-self.costs, kind="stable").tolist()
        return [*order[: SHOWN // 2], *order[-SHOWN // 2 :]]

    def _bar(self, r: int) -> str:
        bar = "█" * round(WIDTH * float(self.costs[r]) / float(self.costs.max()))
        what = "a stand-in" if r in self.stand_ins else f"{self.counts[r]:,} samples"
        return f"  rank {r:<4} {bar:<{WIDTH}} {self.costs[r]:>12,}  {what}"
