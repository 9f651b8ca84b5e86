"""Split given samples into groups, one padded micro-batch each, so that the costliest group is cheapest."""

from bisect import bisect_left
from heapq import heapify, heappop, heappush
from itertools import pairwise

import numpy as np

from ddpsched.costs.cost_model import CostModel
from ddpsched.errors import InfeasibleError
from ddpsched.planning.solvers.allocation.problem import IntArray
from ddpsched.planning.solvers.partition.sorted_batch import GroupCost, Limit, Line, Span, line_of


def min_max_split(
    lengths: IntArray, groups: int, cost: GroupCost | CostModel, limit: Limit | None = None
) -> tuple[list[IntArray], int, int]:
    """Split samples into groups so that the largest cost(count, longest) of a group is as small as possible.

        minimise  max_g cost(|P_g|, max_{i in P_g} lengths[i])   over all partitions P of the samples

    If the cost falls with neither argument, some optimal partition is contiguous in the order of falling
    length: let the groups, by falling longest sample, keep their sizes but take the samples in that order;
    the samples longer than group g's longest all lie in the groups before it, so no group's longest sample
    grows. For contiguous groups, T is feasible if filling each group from the longest sample on up to T
    needs no more than `groups` of them, and bisection finds the smallest such T.

    Of the splits with that makespan one is chosen cheaply: while groups are missing, the costliest that can
    be split is split in two; then, from the shortest samples to the longest, the boundary between
    neighbouring groups is moved to where the larger of the two costs is smallest. Neither step raises a
    largest cost. Promised are the makespan, non-empty groups and determinism, not the smallest variance.

    Args:
        lengths: int64 `(B,)`, one per sample, at least one sample.
        groups: how many groups.
        cost: cost(counts, max_length) with counts int64 `(n,)` and one int; must fall with neither.
        limit: limit(lengths), the most samples of a group by its longest sample (memory); must not grow
            with the length. No limit if not given.

    Returns:
        `groups` int64 arrays of positions into `lengths`, longest sample first (equal ones by position),
        the group with the longest sample first; only if B < `groups` are there empty ones, at the end.
        Then the makespan and its lower bound, which are equal: the makespan is proved.

    Raises:
        ValueError: lengths of a wrong shape or type, no sample, `groups` below 1.
        InfeasibleError: `groups` groups cannot hold the samples within the limit.

    Example:
        >>> import numpy as np
        >>> from ddpsched.planning.solvers.partition.min_max_split import min_max_split
        >>> padded_tokens = lambda count, max_length: count * max_length
        >>> split, makespan, _ = min_max_split(np.array([9, 60, 10, 28, 12, 29]), 3, padded_tokens)
        >>> [group.tolist() for group in split], makespan
        ([[1], [5, 3], [4, 2, 0]], 60)
    """
    array = np.asarray(lengths)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
        raise ValueError(f"lengths must be integers of shape (B,), B >= 1, got {array.dtype} of shape {array.shape}")
    if groups < 1:
        raise ValueError(f"groups must be at least 1, got {groups}")
    line = line_of(array.astype(np.int64, copy=False), cost, limit)
    spans, makespan = split_line(line, groups)
    split = [line.order[a:b] for a, b in spans]
    return split + [line.order[:0]] * (groups - len(spans)), makespan, makespan


def split_line(line: Line, groups: int) -> tuple[list[Span], int]:
    """Return the spans of :func:`min_max_split` in ``groups``, at most one a sample, and the makespan.

    Raises InfeasibleError where memory allows none.
    """
    used = min(groups, len(line))
    if used == 2 and line.limits is None:  # the best boundary is the answer, which any makespan would lead to
        middle = _best_boundary(line, 0, len(line))
        return [(0, middle), (middle, len(line))], max(line.cost_of(0, middle), line.cost_of(middle, len(line)))
    makespan = least_makespan(line, used)
    bounds, size = [0], len(line)
    while bounds[-1] < size:  # each as full as the makespan allows
        bounds.append(min(size, bounds[-1] + line.take(makespan, bounds[-1])))
    if len(bounds) <= used:
        _split_until(line, bounds, used)
    for i in range(len(bounds) - 2, 0, -1):
        bounds[i] = _best_boundary(line, bounds[i - 1], bounds[i + 1])
    return list(pairwise(bounds)), makespan


def least_makespan(line: Line, groups: int) -> int:
    """Return the smallest largest cost of at most ``groups`` spans. Raises InfeasibleError where memory allows none."""
    size, take = len(line), line.take

    def reaches(budget: int) -> bool:
        start = 0
        for _ in range(groups):
            start += take(budget, start)
            if start >= size:
                return True
        return False

    # reaches(budget): whether spans from the longest sample on, each as full as the budget allows, hold all samples
    low, high = line.cost_of(0, 1), line.cost_of(0, -(-size // groups))
    if line.limits is not None and not reaches(high):  # without limits an even split costs at most this
        high = line.cost_of(0, size)
        if not reaches(high):
            raise InfeasibleError(
                f"{groups} micro-batches cannot hold {size} samples within the memory of a rank; raise "
                "memory.budget_bytes or policy.max_microbatches, or lower global_batch or data.max_length"
            )
    if line.weights:
        low = max(low, line.fixed - (-sum(line.weights) // groups))
    return low + bisect_left(range(low, high), True, key=reaches)


def _split_until(line: Line, bounds: list[int], groups: int) -> None:
    """Split the costliest span of two or more samples in two until there are ``groups``, in place."""
    heap = [(-line.cost_of(a, b), a, b) for a, b in pairwise(bounds) if b - a > 1]
    heapify(heap)
    while len(bounds) <= groups:
        _, a, b = heappop(heap)
        middle = _best_boundary(line, a, b)
        bounds.append(middle)
        for start, end in ((a, middle), (middle, b)):
            if end - start > 1:
                heappush(heap, (-line.cost_of(start, end), start, end))
    bounds.sort()


def _best_boundary(line: Line, start: int, end: int) -> int:
    """Return where to split a span in two so that the larger cost is smallest and both fit; the leftmost such place."""
    cost_of, limits, places = line.cost_of, line.limits, range(start + 1, end)
    if limits is not None:  # the left part fits up to a place, the right part from a place on
        first = bisect_left(places, True, key=lambda m: end - m <= limits[m])
        places = range(start + 1 + first, min(end, start + limits[start] + 1))
    # The left cost grows with the boundary and the right one shrinks: the best place is where they cross.
    low, high = places.start, places.stop - 1
    while low < high:
        middle = (low + high) // 2
        if cost_of(start, middle) >= cost_of(middle, end):
            high = middle
        else:
            low = middle + 1
    if low > places.start and cost_of(low - 1, end) <= max(cost_of(start, low), cost_of(low, end)):
        return low - 1
    return low
