"""Padded micro-batches for ranks that are not alike: slower ones, and ones with less memory; for linear costs.

    minimise  max_r slowness[r] * sum_{m in rank r} cost(|m|, longest of m)   with |m| <= limit_r(longest of m)

For given sizes and owners of the micro-batches the best split is still contiguous by falling length, but the order of
the ranks along the line is now part of the question; a few orders are tried, so this is a heuristic with a bound.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, permutations

from ddpsched.errors import InfeasibleError
from ddpsched.planning.solvers.line import Line, Span
from ddpsched.planning.solvers.placement import Placement, placement_of
from ddpsched.planning.solvers.stones import Stone, candidates

MILLION = 10**6
ALL_ORDERS = 6  # so few ranks are tried in every order, where memory is tight
Ranks = list[list[Span]]


def uneven_split(
    line: Line, slowness: Sequence[int], max_microbatches: int, limits: Sequence[list[int]] | None = None
) -> Placement:
    """The best found placement of at most ``max_microbatches`` spans on each rank.

    ``line``: its own limits are those of the roomiest rank. ``slowness``: of each rank, in millionths.
    ``limits[r]``: along the line, the most samples of a micro-batch of rank r; None for no limit.
    Raises InfeasibleError where no placement was found that memory allows.
    """
    assert line.weights, "ranks that are not alike need a cost that is linear in the count"
    search = _Search(line, slowness, limits)
    for order in search.orders():
        search.try_with([[] for _ in slowness], 0, order)
    for count in range(2, max_microbatches + 1):
        for stones, place in candidates(line, len(slowness), count - 1):
            placed = search.place(stones, count - 1)
            if placed is not None:
                by_cost = sorted(range(len(slowness)), key=search.costs(placed).__getitem__)
                search.try_with(placed, place, by_cost)
    if search.best is None:  # memory is tight: as many spans as there may be, whatever they cost
        ranks = range(len(slowness))
        few = permutations(ranks) if len(slowness) <= ALL_ORDERS else ()
        for order in chain(search.orders(), map(list, few)):
            search.try_with([[] for _ in slowness], 0, order * max_microbatches)
    if search.best is None:
        raise InfeasibleError(
            f"found no way for {max_microbatches} micro-batches on each of {len(slowness)} ranks to hold {len(line)} "
            "samples within their memory; raise memory.budget_bytes or policy.max_microbatches, or lower global_batch "
            "or data.max_length"
        )
    fastest, shares = min(slowness), sum(MILLION / rate for rate in slowness)
    bound = max(line.cost_of(0, 1) * fastest // MILLION, int(sum(line.weights) / shares))
    return placement_of(line, search.best, search.costs(search.best), bound)


class _Search:
    """The best placement so far, and how another one is tried."""

    def __init__(self, line: Line, slowness: Sequence[int], limits: Sequence[list[int]] | None) -> None:
        self.line, self.slowness, self.limits = line, slowness, limits
        self.best: Ranks | None = None
        self.makespan = -(-line.cost_of(0, len(line)) * len(line) * max(slowness) // MILLION) + 1  # above any

    def orders(self) -> Iterator[list[int]]:
        """Ranks along the line: the roomiest first, since the longest need most; then fastest and slowest first."""
        rates, ranks = self.slowness, range(len(self.slowness))
        if self.limits is not None:
            limits = self.limits
            yield sorted(ranks, key=lambda r: (-limits[r][0], rates[r]))
        yield sorted(ranks, key=rates.__getitem__)
        yield sorted(ranks, key=rates.__getitem__, reverse=True)

    def costs(self, ranks: Ranks) -> list[int]:
        """What each rank needs, rounded up."""
        work = [sum(self.line.cost_of(a, b) for a, b in spans) for spans in ranks]
        return [-(-cost * rate // MILLION) for cost, rate in zip(work, self.slowness, strict=True)]

    def place(self, stones: list[Stone], most: int) -> Ranks | None:
        """Each stone where it ends earliest, among ranks with fewer than ``most`` that can hold it."""
        ranks: Ranks = [[] for _ in self.slowness]
        loads = [0] * len(ranks)
        for cost, a, b in stones:
            able = [r for r in range(len(ranks)) if len(ranks[r]) < most and self._holds(r, a, b)]
            if not able:
                return None
            rank = min(able, key=lambda r: (loads[r] + cost) * self.slowness[r])
            ranks[rank].append((a, b))
            loads[rank] += cost
        return ranks

    def try_with(self, ranks: Ranks, place: int, sequence: list[int]) -> None:
        """Pour the line from ``place`` on, a span for each rank of the sequence, at the least makespan."""
        low, high = max(self.costs(ranks)), self.makespan - 1
        if low > high or self._poured(ranks, place, sequence, high) is None:
            return
        holds = partial(self._poured, ranks, place, sequence)
        self.makespan = low + bisect_left(range(low, high), True, key=lambda makespan: holds(makespan) is not None)
        self.best = holds(self.makespan)

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
