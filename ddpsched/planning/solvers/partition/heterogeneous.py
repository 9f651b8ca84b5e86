"""Padded micro-batches for ranks that are not alike: slower ones, and ones with less memory; for linear costs.

    minimise  max_r slowness[r] * sum_{m in rank r} cost(|m|, longest of m)   with |m| <= limit_r(longest of m)

For given sizes and owners of the micro-batches the best split is still contiguous by falling length, but the order of
the ranks along the line is now part of the question. Few samples or few distinct lengths are solved exactly; else a few
orders are tried, so this is a heuristic with a bound.

A larger M never costs more: counts are tried from one upwards, each with what is tried for it alone, so a larger M goes
on where a smaller one ended.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, permutations

from ddpsched.errors import InfeasibleError
from ddpsched.planning.assignment import Assignment
from ddpsched.planning.solvers.partition.candidates import LargeItem, candidates
from ddpsched.planning.solvers.partition.exact import MILLION, exact_split
from ddpsched.planning.solvers.partition.levelling import SPARE, counts_to_try
from ddpsched.planning.solvers.partition.placement import assignment_of
from ddpsched.planning.solvers.partition.sorted_batch import Line, Span, most_within

ALL_ORDERS = 6  # so few ranks are tried in every order, where memory is tight
Ranks = list[list[Span]]


def uneven_split(
    line: Line, slowness: Sequence[int], max_microbatches: int, limits: Sequence[list[int]] | None = None
) -> Assignment:
    """The best found placement of at most ``max_microbatches`` spans on each rank.

    ``line``: its own limits are those of the roomiest rank. ``slowness``: of each rank, in millionths.
    ``limits[r]``: along the line, the most samples of a micro-batch of rank r; None for no limit.
    Raises InfeasibleError where no placement was found that memory allows.
    """
    assert line.weights, "ranks that are not alike need a cost that is linear in the count"
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
    return assignment_of(line, search.best, search.costs(search.best), bound)


def lower_bound(line: Line, slowness: Sequence[int]) -> int:
    """Return a lower bound: the longest sample on the fastest rank, and all samples without padding.

    The second is the least T within which the ranks hold the work: sum_r max(0, T / slowness[r] - fixed) >= sum of
    weights, in whole units of cost.
    """

    def holds(makespan: int) -> bool:
        return sum(max(0, makespan * MILLION // rate - line.fixed) for rate in slowness) >= line.work

    low = -(-line.cost_of(0, 1) * min(slowness) // MILLION)
    high = -(-(line.work + line.fixed) * max(slowness) // MILLION)
    return low + bisect_left(range(low, high), True, key=holds) if low < high else low


class _Search:
    """The best placement so far, and how another one is tried."""

    def __init__(self, line: Line, slowness: Sequence[int], limits: Sequence[list[int]] | None) -> None:
        self.line, self.slowness, self.limits = line, slowness, limits
        self._most = most_within(line, limits)
        self.best: Ranks | None = None
        self.makespan = self._above_any = -(-line.cost_of(0, len(line)) * len(line) * max(slowness) // MILLION) + 1

    def usable(self) -> int:
        """No rank of a placement cheaper than the best one needs more micro-batches."""
        return self._most((self.makespan - 1) * MILLION // min(self.slowness))

    def orders(self) -> Iterator[list[int]]:
        """Ranks along the line: the roomiest first, since the longest need most; then fastest and slowest first."""
        rates, ranks = self.slowness, range(len(self.slowness))
        if self.limits is not None:
            limits = self.limits
            yield sorted(ranks, key=lambda r: (-limits[r][0], rates[r]))
        yield sorted(ranks, key=rates.__getitem__)
        yield sorted(ranks, key=rates.__getitem__, reverse=True)

    def try_count(self, count: int) -> None:
        """Try what there is for up to ``count`` micro-batches a rank; all that is tried where there are no others."""
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
        """Whether so many spans would hold all samples if every rank were the roomiest."""
        start = 0
        for _ in range(spans):
            start += len(self.line) if self.line.limits is None else self.line.limits[start]
            if start >= len(self.line):
                return True
        return False

    def costs(self, ranks: Ranks) -> list[int]:
        """Return the cost of each rank, rounded up."""
        work = [sum(self.line.cost_of(a, b) for a, b in spans) for spans in ranks]
        return [-(-cost * rate // MILLION) for cost, rate in zip(work, self.slowness, strict=True)]

    def place(self, large_items: list[LargeItem], most: int) -> Ranks | None:
        """Each large item where it ends earliest, among ranks with fewer than ``most`` that can hold it."""
        ranks: Ranks = [[] for _ in self.slowness]
        loads = [0] * len(ranks)
        for cost, a, b in large_items:
            able = [r for r in range(len(ranks)) if len(ranks[r]) < most and self._holds(r, a, b)]
            if not able:
                return None
            rank = min(able, key=lambda r: (loads[r] + cost) * self.slowness[r])
            ranks[rank].append((a, b))
            loads[rank] += cost
        return ranks

    def try_with(self, ranks: Ranks, place: int, sequence: list[int]) -> bool:
        """Pour the line from ``place`` on, a span for each rank of the sequence, at the least makespan.

        Returns whether memory holds it, at whatever makespan.
        """
        low, high = max(self.costs(ranks)), self.makespan - 1
        if low > high or self._poured(ranks, place, sequence, high) is None:
            return self.limits is None or self._poured(ranks, place, sequence, self._above_any) is not None
        holds = partial(self._poured, ranks, place, sequence)
        self.makespan = low + bisect_left(range(low, high), True, key=lambda makespan: holds(makespan) is not None)
        self.best = holds(self.makespan)
        return True

    def _poured(self, ranks: Ranks, place: int, sequence: list[int], makespan: int) -> Ranks | None:
        line, result = self.line, [list(spans) for spans in ranks]
        loads = [sum(line.cost_of(a, b) for a, b in spans) for spans in ranks]
        start = place
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

    def _holds(self, rank: int, start: int, end: int) -> bool:
        return self.limits is None or end - start <= self.limits[rank][start]
