"""A batch by falling length, as a line: what a padded micro-batch of neighbours costs, and how many samples fit.

A *span* ``(a, b)`` of the line is one micro-batch: samples a .. b-1, padded to sample a, its longest. All solvers of
padded micro-batches cut the line into spans.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain, groupby, pairwise

import numpy as np
import numpy.typing as npt

from ddpsched.costs.cost_model import CostModel
from ddpsched.planning.assignment import Assignment, refuse_too_long
from ddpsched.planning.solvers.allocation.problem import IntArray

# cost(counts, max_length): int64, one entry per count
GroupCost = Callable[[IntArray, int], npt.ArrayLike]
# limit(lengths): int64, the most samples of a micro-batch whose longest is this long
Limit = Callable[[IntArray], IntArray]
Span = tuple[int, int]
Ranks = list[list[Span]]  # the spans of each rank


@dataclass(frozen=True)
class Line:
    """The samples of a batch by falling length, and the cost of spans of them.

    ``order``: (B,), positions by falling length, equal ones by position. All else is indexed along that order.
    ``cost_of(a, b)``: the cost of a span. ``take(budget, a)``: how many samples a span from a on may hold within a cost
    of ``budget`` and within memory. ``limits[a]``: the most that memory holds, None for no limit. ``weights[a]`` and
    ``fixed``, of linear costs alone: a span costs ``fixed + (b - a) * weights[a]`` (or its floor).
    """

    order: IntArray
    cost_of: Callable[[int, int], int]
    take: Callable[[int, int], int]
    limits: list[int] | None
    weights: list[int]
    fixed: int

    def __len__(self) -> int:
        return len(self.order)

    @cached_property
    def runs(self) -> list[tuple[int, int]]:
        """Starts and counts of samples of equal weight, by falling weight; for linear costs."""
        runs, start = [], 0
        for _, equal in groupby(self.weights):
            runs.append((start, len(list(equal))))
            start += runs[-1][1]
        return runs

    @cached_property
    def work(self) -> int:
        """The cost of all samples without padding and without fixed costs; for linear costs."""
        return sum(self.weights)

    @property
    def floored(self) -> bool:
        """Whether a small span costs more than its linear cost; for linear costs."""
        return self.cost_of(len(self) - 1, len(self)) > self.fixed + self.weights[-1]

    def costs(self, ranks: Ranks) -> list[int]:
        """Return the cost of each rank's spans."""
        return [sum([self.cost_of(a, b) for a, b in spans]) for spans in ranks]

    def assignment(self, ranks: Ranks, lower_bound: int, costs: Sequence[int] | None = None) -> Assignment:
        """Return the assignment in which rank r runs the spans ``ranks[r]``; ``costs``: if not those of the line."""
        spans = list(chain.from_iterable(ranks))
        in_order = all([end == start for (_, end), (start, _) in pairwise(spans)])  # as of one span a rank
        positions = self.order if in_order else np.concatenate([self.order[a:b] for a, b in spans])
        sizes = tuple(tuple([b - a for a, b in spans]) for spans in ranks)
        return Assignment(positions, sizes, tuple(costs or self.costs(ranks)), lower_bound)


def falling(lengths: IntArray) -> IntArray:
    """Return positions by falling length, equal ones by position, (B,) -> (B,)."""
    return (-lengths).argsort(kind="stable")


def line_of(lengths: IntArray, cost: GroupCost | CostModel, limit: Limit | None = None) -> Line:
    """Return the line of these lengths, int64 ``(B,)``. Raises InfeasibleError where one sample is over the limit.

    ``cost``: cost(counts, longest), which must fall with neither. ``limit``: limit(lengths), the most samples of a
    micro-batch by its longest sample. A linear cost with a floor counts as linear too; where many small micro-batches
    are placed, its floor enters only the last comparison.

    >>> line = line_of(np.array([3, 9, 5]), CostModel(0, 1, 0, scale=1))
    >>> line.order.tolist(), line.cost_of(0, 2), line.take(10, 1)
    ([1, 2, 0], 18, 2)
    """
    order = falling(lengths)
    ordered = lengths[order]
    limits = None if limit is None else limit(ordered).tolist()
    if limits is not None and limits[0] < 1:
        refuse_too_long(ordered[0])
    if isinstance(cost, CostModel) and cost.linear:
        return _linear(order, cost.sample(ordered).tolist(), cost.fixed, cost.least, limits)
    if isinstance(cost, CostModel):
        return _general(order, cost.rounded(ordered).tolist(), cost.padded, limits)
    return _general(order, ordered.tolist(), cost, limits)


def most_within(line: Line, limits: Sequence[list[int]] | None) -> Callable[[int], int]:
    """Return most(budget): no rank needs more spans for what it runs within a cost of ``budget``; for linear costs.

    A span costs at least what the shortest sample does alone. Two spans of a rank whose longest samples are alike are
    better joined where both are at most half full. So where there are limits (a list for each rank) all but one span of
    each kind are fuller than that, and cost as much.
    """
    least = line.cost_of(len(line) - 1, len(line))
    if limits is None:
        return lambda budget: budget // least
    kinds = len(set(zip(line.weights, *limits, strict=True)))
    pairs = [pair for each in limits for pair in zip(line.weights, each, strict=True)]
    half = min(line.fixed + weight * (most // 2 + 1) for weight, most in pairs if most)
    return lambda budget: min(budget // least, kinds + budget // half)


def _linear(order: IntArray, weights: list[int], fixed: int, least: int, limits: list[int] | None) -> Line:
    def cost_of(start: int, end: int) -> int:
        return fixed + (end - start) * weights[start]

    def take(budget: int, start: int) -> int:
        return (budget - fixed) // weights[start]

    if least == 0 and limits is None:
        return Line(order, cost_of, take, limits, weights, fixed)

    def cost_of_floored(start: int, end: int) -> int:
        return max(least, fixed + (end - start) * weights[start])

    def take_limited(budget: int, start: int) -> int:
        most = (budget - fixed) // weights[start] if budget >= least else 0
        return most if limits is None else min(most, limits[start])

    return Line(order, cost_of_floored, take_limited, limits, weights, fixed)


def _general(order: IntArray, lengths: list[int], cost: GroupCost, limits: list[int] | None) -> Line:
    counts = np.arange(1, len(lengths) + 1)
    # row(length)[n - 1]: what n samples cost, the longest of them of this length
    row: Callable[[int], list[int]] = cache(lambda length: np.asarray(cost(counts, length)).tolist())

    def cost_of(start: int, end: int) -> int:
        return row(lengths[start])[end - start - 1]

    def take(budget: int, start: int) -> int:
        fitting = bisect_right(row(lengths[start]), budget)
        return fitting if limits is None else min(fitting, limits[start])

    return Line(order, cost_of, take, limits, [], 0)
