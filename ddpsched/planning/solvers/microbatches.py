"""Several padded micro-batches a rank: spans of the line placed on ranks, for linear costs.

    minimise  max_r sum_{m in rank r} cost(|m|, longest of m)   with at most M micro-batches m on a rank

One micro-batch a rank is :func:`split_line`, proved. For more this is a heuristic, and the lower bound tells by how
much it can be off. No micro-batch set has less work than the real tokens, each rank that works pays ``fixed`` at least
once, and the longest sample is on some rank:

    makespan >= max(cost(1, longest), ceil(sum of weights / G) + fixed)
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heapreplace

from ddpsched.errors import InfeasibleError
from ddpsched.planning.solvers.exchange import exchange
from ddpsched.planning.solvers.line import Line, Span
from ddpsched.planning.solvers.padding import least_padded_spans, padded_bound
from ddpsched.planning.solvers.partition import least_makespan, split_line
from ddpsched.planning.solvers.placement import Placement, placement_of
from ddpsched.planning.solvers.stones import Stone, candidates, runs

QUICK = 10**7  # operations, some 10 ms


def accumulate_split(line: Line, world_size: int, max_microbatches: int) -> Placement:
    """The best found placement of at most ``max_microbatches`` spans on each of ``world_size`` equal ranks.

    How many a rank gets follows from the cost. Each count up to the most is tried where a micro-batch has a fixed cost,
    or where there are less than two samples for each, so that the most is often not the best. One rank has nothing to
    level, and the least padding is found. Raises InfeasibleError where memory allows no placement.
    """
    if max_microbatches == 1:
        spans, makespan = split_line(line, world_size)
        return _placement(line, _one_each(spans, world_size), makespan)
    assert line.weights, "several micro-batches need a cost that is linear in the count"
    bound, one_each = lower_bound(line, world_size, max_microbatches), _one_each_makespan(line, world_size)
    floored = line.cost_of(len(line) - 1, len(line)) > line.fixed + line.weights[-1]
    if world_size == 1 and line.limits is None and not floored and _is_quick(line, max_microbatches):
        return _placement(line, [least_padded_spans(line, max_microbatches)], bound)
    few = floored or 2 * world_size * max_microbatches > len(line)
    best: tuple[list[list[Span]], list[int]] | None = None
    below = one_each
    for found in _tries(line, world_size, max_microbatches, few, below, bound):
        ranks = _spans(line, found)
        costs = exchange(line, ranks, max_microbatches)
        if max(costs) <= (one_each if best is None else max(best[1]) - 1):
            best = ranks, costs
    if best is not None:
        return placement_of(line, *best, bound)
    return _placement(line, _fallback(line, world_size, max_microbatches), bound)


def _tries(line: Line, world_size: int, most: int, few: bool, below: int, bound: int) -> Iterator["_Found"]:
    """The best of each count of micro-batches, or with many samples the best of all counts, before any exchange."""
    if few:
        starts, sizes = runs(line, max(1, sum(line.weights) // (world_size * most)))
        if len(starts) <= world_size * most:  # samples of equal length together are few enough to be stones, no sand
            stones = [(line.cost_of(a, a + n), a, a + n) for a, n in zip(starts, sizes, strict=True)]
            whole = _place(line, sorted(stones, reverse=True), len(line), world_size, most, below)
            if whole is not None:
                yield whole
    best, limit = None, below
    for count in range(2, most + 1) if line.fixed or few else (most,):
        if few:
            best, limit = None, below
        for stones, place in candidates(line, world_size, count - 1):
            if limit == bound:
                break
            better = _place(line, stones, place, world_size, count - 1, limit)
            if better is not None:
                best, limit = better, better.makespan
        if best is not None and (few or count == most):
            yield best


def lower_bound(line: Line, world_size: int, max_microbatches: int) -> int:
    """What no placement can go below: the quick bound of the module's docstring, or the one that counts padding."""
    if (line.fixed or world_size == 1) and _is_quick(line, world_size * max_microbatches):
        return padded_bound(line, world_size, max_microbatches)
    return max(line.cost_of(0, 1), -(-sum(line.weights) // world_size) + line.fixed)


def _is_quick(line: Line, groups: int) -> bool:
    """Whether the least padding of so many groups is soon found."""
    return len(set(line.weights)) ** 2 * groups < QUICK


def _placement(line: Line, ranks: list[list[Span]], bound: int) -> Placement:
    return placement_of(line, ranks, [sum(line.cost_of(a, b) for a, b in spans) for spans in ranks], bound)


def _one_each_makespan(line: Line, world_size: int) -> int:
    """What one micro-batch a rank costs; more than anything where memory cannot hold the batch so."""
    try:
        return least_makespan(line, min(world_size, len(line)))
    except InfeasibleError:
        return line.cost_of(0, len(line)) + len(line) * line.fixed + 1


def _one_each(spans: list[Span], world_size: int) -> list[list[Span]]:
    return [[span] for span in spans] + [[]] * (world_size - len(spans))


@dataclass(frozen=True)
class _Found:
    """Stones with the ranks they lie on, and how high the sand of each rank reaches."""

    makespan: int
    stones: list[Stone]
    owners: list[int]
    loads: list[int]  # of the stones alone
    place: int


def _place(line: Line, stones: list[Stone], place: int, world_size: int, most: int, below: int) -> _Found | None:
    """Each stone on the lightest rank with fewer than ``most``; then the sand. None where no better than ``below``."""
    counts, owners = [0] * world_size, []
    # A rank is one integer, load * world_size + rank: the least is the lightest, equal ones by rank.
    lightest, full, roof = list(range(world_size)), [], below * world_size
    for cost, _, _ in stones:
        rank = lightest[0] % world_size
        laden = lightest[0] + cost * world_size
        if laden >= roof:
            return None
        owners.append(rank)
        counts[rank] += 1
        if counts[rank] < most:
            heapreplace(lightest, laden)
        else:
            heappop(lightest)
            full.append(laden)
    loads = [0] * world_size
    for laden in lightest + full:
        loads[laden % world_size] = laden // world_size
    makespan = max(loads) if place == len(line) else _level(line, place, loads, below)
    return None if makespan is None else _Found(makespan, stones, owners, loads, place)


def _level(line: Line, place: int, loads: list[int], below: int) -> int | None:
    """How high ranks must be filled so that one span each, the lightest rank first, holds the sand from ``place`` on.

    By bisection; None where ``below`` is not undercut.
    """
    weights, limits, size = line.weights, line.limits, len(line)
    paid = [load + line.fixed for load in sorted(loads)]

    def reaches(makespan: int) -> bool:
        start = place
        for before in paid:
            count = (makespan - before) // weights[start]
            if limits is not None and count > limits[start]:
                count = limits[start]
            if count > 0:
                start += count
                if start >= size:
                    return True
        return False

    low = max(max(loads), -(-(sum(loads) + sum(weights[place:])) // len(loads)))
    high = below - 1
    if low > high or not reaches(high):
        return None
    return low + bisect_left(range(low, high), True, key=reaches)


def _spans(line: Line, found: _Found) -> list[list[Span]]:
    """Each rank's micro-batches: its stones, then its sand."""
    loads, start = found.loads, found.place
    ranks: list[list[Span]] = [[] for _ in loads]
    for rank, (_, a, b) in zip(found.owners, found.stones, strict=True):
        ranks[rank].append((a, b))
    for rank in sorted(range(len(loads)), key=loads.__getitem__):
        if start < len(line):
            count = (found.makespan - loads[rank] - line.fixed) // line.weights[start]  # as in _level
            if line.limits is not None:
                count = min(count, line.limits[start])
            if count > 0:
                end = min(len(line), start + count)
                ranks[rank].append((start, end))
                start = end
    return ranks


def _fallback(line: Line, world_size: int, most: int) -> list[list[Span]]:
    """One span a rank; where memory cannot hold the batch so, as many as there may be, each on the lightest rank."""
    try:
        return _one_each(split_line(line, world_size)[0], world_size)
    except InfeasibleError:
        spans, _ = split_line(line, world_size * most)
    ranks: list[list[Span]] = [[] for _ in range(world_size)]
    loads = [0] * world_size
    for a, b in sorted(spans, key=lambda span: (-line.cost_of(*span), span)):
        rank = min((r for r in range(world_size) if len(ranks[r]) < most), key=loads.__getitem__)
        ranks[rank].append((a, b))
        loads[rank] += line.cost_of(a, b)
    return ranks
