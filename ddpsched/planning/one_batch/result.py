"""Balance: which rank runs which samples of one batch, in which micro-batches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ddpsched.costs.cost_model import Int
from ddpsched.denominators import as_numpy
from ddpsched.errors import ConfigError, DataError
from ddpsched.planning.one_batch.items import is_index

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
    less in as many micro-batches. ``packed``: micro-batches are rows without padding. ``stand_ins``: (r, m) of each
    micro-batch in which the shortest sample runs at weight 0, as its rank lacks one.

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
    stand_ins: frozenset[tuple[int, int]] = frozenset()

    @property
    def world_size(self) -> int:
        """The number of ranks, G."""
        return len(self.ranks)

    @cached_property
    def counts(self) -> Int:
        """The samples of each rank, (G,); 0 for one that has a stand-in."""
        return np.array([sum(map(len, self._real(r))) for r in range(self.world_size)], dtype=np.int64)

    def _real(self, rank: int) -> list[Int]:
        """Return the micro-batches of a rank without its stand-ins."""
        return [micro for m, micro in enumerate(self.ranks[rank]) if (rank, m) not in self.stand_ins]

    @property
    def gap(self) -> float:
        """``makespan`` over ``lower_bound``, less 1: by how much another division could be better at most."""
        return self.makespan / self.lower_bound - 1

    @cached_property
    def reorder(self) -> Int:
        """(B,): ``batch[reorder]`` has the samples rank by rank, micro-batch by micro-batch."""
        return np.concatenate([micro for r in range(self.world_size) for micro in self._real(r)])

    @cached_property
    def restore(self) -> Int:
        """(B,): ``batch[reorder][restore]`` is ``batch``."""
        found = np.empty_like(self.reorder)
        found[self.reorder] = np.arange(len(found))
        return found

    def sum_scale(
        self, weights: npt.ArrayLike | None = None, rank: int | None = None, microbatch: int | None = None
    ) -> float:
        """Return G / sum of ``weights``: the factor of *summed* losses where gradients are averaged over ranks.

        ``weights``: (B,), of each sample in the mean that is meant: its label tokens for the mean over tokens; 1
        without them, for the mean over samples. ``rank``, ``microbatch``: where there are stand-ins, whose scale is 0,
        the place of the micro-batch; the second is not needed where a rank runs either samples or a stand-in. Raises
        DataError for weights that are no numbers, negative, or all 0, ConfigError for a place that there is not, or
        that is needed and not given.
        """
        total = float(len(self.lengths)) if weights is None else self._sum_of(weights)
        return 0.0 if self._stands_in(rank, microbatch) else self.world_size / total

    def _sum_of(self, weights: npt.ArrayLike) -> float:
        try:
            given = as_numpy(weights).astype(np.float64)
        except (TypeError, ValueError):
            raise DataError("sum_scale: weights are no numbers; give one for each sample, of 0 or more") from None
        if given.shape != self.lengths.shape:
            raise DataError(
                f"sum_scale: weights of shape {given.shape}, needs {self.lengths.shape}, one for each sample"
            )
        wrong = ~np.isfinite(given) | (given < 0)
        if wrong.any() or not given.any():
            which = f"weight {int(wrong.argmax())} is {given[wrong.argmax()]}" if wrong.any() else "all weights are 0"
            raise DataError(f"sum_scale: {which}; give numbers of 0 or more, at least one above 0")
        total = float(given.sum())
        if not math.isfinite(total):
            raise DataError("sum_scale: the weights add up to more than float64 holds; give smaller ones")
        return total

    def _stands_in(self, rank: int | None, microbatch: int | None) -> bool:
        """Return whether the micro-batch at this place weighs nothing."""
        if rank is not None and not is_index(rank, self.world_size):
            raise ConfigError(f"sum_scale: rank = {rank!r}, needs an integer from 0 to {self.world_size - 1}")
        most = max(map(len, self.ranks)) if rank is None else len(self.ranks[rank])
        if microbatch is not None and not is_index(microbatch, most):
            raise ConfigError(f"sum_scale: microbatch = {microbatch!r}, needs an integer from 0 to {most - 1}")
        if not self.stand_ins:
            return False
        if rank is not None:
            places = range(len(self.ranks[rank])) if microbatch is None else [microbatch]
            kinds = {(rank, place) in self.stand_ins for place in places}
            if len(kinds) == 1:
                return kinds.pop()
        some = min(self.stand_ins)
        missing = "rank=" if rank is None else "microbatch="
        raise ConfigError(
            f"sum_scale: {len(self.stand_ins)} micro-batches stand in at weight 0, such as number {some[1]} of rank "
            f"{some[0]}; give {missing}, the one that the loss is of"
        )

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each sample, stand-ins left out: position, length, rank, micro-batch."""
        import pandas as pd

        places = [
            (position, r, m)
            for r in range(self.world_size)
            for m, micro in enumerate(self._real(r))  # stand-ins are the last ones of a rank
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
        lacks = len(self.ranks[r]) - len(self._real(r))
        what = f"{self.counts[r]:,} samples" if self.counts[r] else "a stand-in"
        if lacks > 1 or (lacks and self.counts[r]):
            what += f", {lacks} stand-in{'s' * (lacks > 1)}"
        return f"  rank {r:<4} {bar:<{WIDTH}} {self.costs[r]:>12,}  {what}"
