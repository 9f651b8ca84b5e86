"""Padded micro-batches for ranks that are not alike: slower ones, and ones with less memory; for linear costs.

    minimise  max_r slowness[r] * sum_{m in rank r} cost(|m|, longest of m)   with |m| <= limit_r(longest of m)

For given sizes and ranks of the micro-batches the best split is still contiguous by falling length, but the order of
the ranks along the line now matters. Few samples or few distinct lengths are solved exactly. Else a few orders are
tried, so this is a heuristic with a bound.

A larger M never costs more: counts are tried from one upwards, and what is tried for a count does not depend on M.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, permutations

from ddpsched.costs.rank_speed import slowed
from ddpsched.errors import InfeasibleError
from ddpsched.planning.assignment import Assignment
from ddpsched.planning.solvers.partition.exact import MILLION, exact_split
from ddpsched.planning.solvers.partition.large_items import SPARE, LargeItem, candidates, counts_to_try
from ddpsched.planning.solvers.partition.sorted_batch import Line, Ranks, most_within

ALL_ORDERS = 6  # so few ranks are tried in every order, where memory is tight


def uneven_split(
    line: Line, slowness: Sequence[int], max_microbatches: int, limits: Sequence[list[int]] | None = None
) -> Assignment:
    """Return the best placement found of at most ``max_microbatches`` spans on each rank.

    ``line``: its limits are those of the roomiest rank. ``slowness``: of each rank, in millionths. ``limits[r]``: along
    the line, the most samples of a micro-batch of rank r; None for no limit. Raises InfeasibleError where it finds no
    placement that memory allows.
    """
    assert line.weights, "ranks that differ need a cost that is linear in the count"
    search, bound = _Search(line, slowness, limits), lower_bound(line, slowness)
    most = min(max_microbatches, len(line))
    if limits is None:  # micro-batches of a rank whose longest samples are equally long are better joined
        most = min(most, max(SPARE, len(line.runs)))
    for count in counts_to_try(1, most, most):
        if search.best is not None and (search.makespan == bound or count > SPARE + search.usable()):
            break
        search.try_count(count)
    if search.best is None or search.makespan > bound:
        exact = exact_split(line, most, slowness, limits or [None] * len(slowness))
        if exact is not None:
            bound = max(search.costs(exact))
            if search.best is None or bound < search.makespan:
                search.best = exact
    if search.best is None:
        raise InfeasibleError(
            f"found no way for {max_microbatches} micro-batches on each of {len(slowness)} ranks to hold {len(line)} "
            "samples within their memory; raise memory.budget_bytes or policy.max_microbatches, or lower global_batch "
            "or data.max_length"
        )
    return line.assignment(search.best, bound, search.costs(search.best))


def lower_bound(line: Line, slowness: Sequence[int]) -> int:
    """Return a lower bound: the longest sample on the fastest rank, and all samples without padding.

    The second is the least T within which the ranks hold the work: sum_r max(0, T / slowness[r] - fixed) >= sum of
    weights, in whole units of cost.
    """

    def holds(makespan: int) -> bool:
        return sum(max(0, makespan * MILLION // rate - line.fixed) for rate in slowness) >= line.work

    low = slowed(line.cost_of(0, 1), min(slowness))
    high = slowed(line.work + line.fixed, max(slowness))
    return low + bisect_left(range(low, high), True, key=holds) if low < high else low


class _Search:
    """The best placement so far, and the trial of another one."""

    def __init__(self, line: Line, slowness: Sequence[int], limits: Sequence[list[int]] | None) -> None:
        self.line, self.slowness, self.limits = line, slowness, limits
        self._most = most_within(line, limits)
        self.best: Ranks | None = None
        self.makespan = self._above_any = slowed(line.cost_of(0, len(line)) * len(line), max(slowness)) + 1

    def usable(self) -> int:
        """Return the most micro-batches that a rank of a cheaper placement can need."""
        return self._most((self.makespan - 1) * MILLION // min(self.slowness))

    def orders(self) -> Iterator[list[int]]:
        """Yield ranks along the line: the roomiest first, since the longest need most; then fastest, slowest first."""
        rates, limits, ranks = self.slowness, self.limits, range(len(self.slowness))
        if limits is not None:
            yield sorted(ranks, key=lambda r: (-limits[r][0], rates[r]))
        yield sorted(ranks, key=rates.__getitem__)
        yield sorted(ranks, key=rates.__getitem__, reverse=True)

    def try_count(self, count: int) -> None:
        """Try placements of up to ``count`` micro-batches a rank."""
        ranks, holds = range(len(self.slowness)), False
        if count == 1:
            for order in self.orders():
                holds |= self.try_with([[] for _ in ranks], 0, order)
        else:
            for large_items, place, _ in candidates(self.line, len(ranks), count - 1):
                placed = self.place(large_items, count - 1)
                if placed is not None:
                    by_cost = sorted(ranks, key=self.costs(placed).__getitem__)
                    holds |= self.try_with(placed, place, by_cost)
        if not holds and self._may_hold(len(ranks) * count):
            # memory is tight: as many spans as there may be, whatever they cost
            few = permutations(ranks) if len(ranks) <= ALL_ORDERS else ()
            for order in chain(self.orders(), map(list, few)):
                self.try_with([[] for _ in ranks], 0, order * count)

    def _may_hold(self, spans: int) -> bool:
        """Return whether so many spans would hold all samples if every rank were the roomiest."""
        start, limits = 0, self.line.limits or [len(self.line)]
        while start < len(self.line) and spans:
            start, spans = start + limits[start], spans - 1
        return start >= len(self.line)

    def costs(self, ranks: Ranks) -> list[int]:
        """Return the cost of each rank, rounded up."""
        return [slowed(cost, rate) for cost, rate in zip(self.line.costs(ranks), self.slowness, strict=True)]

    def place(self, large_items: list[LargeItem], most: int) -> Ranks | None:
        """Place each large item where it ends earliest, among ranks with fewer than ``most`` that can hold it."""
        ranks: Ranks = [[] for _ in self.slowness]
        loads, limits = [0] * len(ranks), self.limits
        for cost, a, b in large_items:
            able = [r for r in range(len(ranks)) if len(ranks[r]) < most and (not limits or b - a <= limits[r][a])]
            if not able:
                return None
            rank = min(able, key=lambda r: (loads[r] + cost) * self.slowness[r])
            ranks[rank].append((a, b))
            loads[rank] += cost
        return ranks

    def try_with(self, ranks: Ranks, place: int, sequence: list[int]) -> bool:
        """Fill spans from ``place`` on, one for each rank of the sequence, at the least makespan.

        Return whether memory holds it, at whatever makespan.
        """
        low, high = max(self.costs(ranks)), self.makespan - 1
        filled = partial(self._filled, ranks, place, sequence)
        if low > high or filled(high) is None:
            return self.limits is None or filled(self._above_any) is not None
        self.makespan = low + bisect_left(range(low, high), True, key=lambda makespan: filled(makespan) is not None)
        self.best = filled(self.makespan)
        return True

    def _filled(self, ranks: Ranks, place: int, sequence: list[int], makespan: int) -> Ranks | None:
        line, result, loads, start = self.line, [list(spans) for spans in ranks], self.line.costs(ranks), place
        for rank in sequence:
            if start == len(line):
                break
            count = line.take(makespan * MILLION // self.slowness[rank] - loads[rank], start)
            if self.limits is not None:
                count = min(count, self.limits[rank][start])
            if count > 0:
                end = min(len(line), start + count)
                result[rank].append((start, end))
                loads[rank] += line.cost_of(start, end)
                start = end
        return result if start == len(line) else None
