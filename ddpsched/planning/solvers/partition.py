"""Split given samples into groups, one padded micro-batch each, so that the costliest group is cheapest."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from functools import cache
from heapq import heapify, heappop, heappush

import numpy as np
import numpy.typing as npt

from ddpsched.errors import InfeasibleError
from ddpsched.planning.solvers.allocation import IntArray

# cost(counts, max_length): int64, one entry per count
GroupCost = Callable[[IntArray, int], npt.ArrayLike]


def min_max_split(
    lengths: IntArray, groups: int, cost: GroupCost, cap: int | None = None
) -> tuple[list[IntArray], int, int]:
    """Splits samples into groups so that the largest cost(count, longest) of a group is as small as possible.

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
        cap: the most samples in one group; no cap if not given.

    Returns:
        `groups` int64 arrays of positions into `lengths`, longest sample first (equal ones by position),
        the group with the longest sample first; only if B < `groups` are there empty ones, at the end.
        Then the makespan and its lower bound, which are equal: the makespan is proved.

    Raises:
        ValueError: lengths of a wrong shape or type, no sample, `groups` or `cap` below 1.
        InfeasibleError: `groups` * `cap` is below B.

    Example:
        >>> import numpy as np
        >>> from ddpsched.planning.solvers import min_max_split
        >>> padded_tokens = lambda count, max_length: count * max_length
        >>> split, makespan, _ = min_max_split(np.array([9, 60, 10, 28, 12, 29]), 3, padded_tokens)
        >>> [group.tolist() for group in split], makespan
        ([[1], [5, 3], [4, 2, 0]], 60)
    """
    given = np.asarray(lengths)
    if given.ndim != 1 or given.size == 0 or given.dtype.kind not in "iu":
        raise ValueError(f"lengths must be integers of shape (B,), B >= 1, got {given.dtype} of shape {given.shape}")
    size = len(given)
    if groups < 1 or (cap is not None and cap < 1):
        raise ValueError(f"groups and cap must be at least 1, got groups {groups}, cap {cap}")
    most = size if cap is None else min(cap, size)
    if groups * most < size:
        raise InfeasibleError(f"{groups} groups of at most {most} samples cannot hold {size} samples")

    # order: (B,), positions by falling length, equal ones by position
    order = np.argsort(-given.astype(np.int64), kind="stable")
    line = _Line(given[order].tolist(), most, cost)
    used = min(groups, size)
    lower_bound, starts = line.fewest_groups(used)
    starts = line.balance(line.split_until(starts, used))
    makespan = max(line.cost_of(a, b) for a, b in line.spans(starts))
    return [order[a:b] for a, b in line.spans(starts)] + [order[:0]] * (groups - len(starts)), makespan, lower_bound


class _Line:
    """Samples in the order of falling length; a group is a span of them, a split the list of its starts."""

    def __init__(self, lengths: list[int], most: int, cost: GroupCost) -> None:
        self.lengths = lengths
        self.most = most
        counts = np.arange(1, most + 1)
        # row(length)[n - 1]: what n samples cost, the longest of them of this length
        self.row: Callable[[int], list[int]] = cache(lambda length: np.asarray(cost(counts, length)).tolist())

    def cost_of(self, start: int, end: int) -> int:
        return self.row(self.lengths[start])[end - start - 1]

    def spans(self, starts: list[int]) -> list[tuple[int, int]]:
        return list(zip(starts, [*starts[1:], len(self.lengths)], strict=True))

    def fewest_groups(self, groups: int) -> tuple[int, list[int]]:
        """The smallest makespan of at most `groups`, and a split of it, each but the last as full as it allows."""
        size = len(self.lengths)
        low, high = self.row(self.lengths[0])[0], self.row(self.lengths[0])[-(-size // groups) - 1]
        starts = self._fill(high, groups)
        assert starts is not None, "an even split costs at most this"
        while low < high:
            middle = (low + high) // 2
            tried = self._fill(middle, groups)
            if tried is None:
                low = middle + 1
            else:
                starts, high = tried, middle
        return low, starts

    def split_until(self, starts: list[int], groups: int) -> list[int]:
        """Halves the costliest group of two or more samples until there are `groups`."""
        heap = [(-self.cost_of(a, b), a, b) for a, b in self.spans(starts) if b - a > 1]
        heapify(heap)
        starts = starts.copy()
        while len(starts) < groups:
            _, a, b = heappop(heap)
            middle = self._best_boundary(a, b)
            starts.append(middle)
            for start, end in ((a, middle), (middle, b)):
                if end - start > 1:
                    heappush(heap, (-self.cost_of(start, end), start, end))
        return sorted(starts)

    def balance(self, starts: list[int]) -> list[int]:
        """Moves each boundary once, that of the shortest samples first."""
        bounds = [*starts, len(self.lengths)]
        for i in range(len(starts) - 1, 0, -1):
            bounds[i] = self._best_boundary(bounds[i - 1], bounds[i + 1])
        return bounds[:-1]

    def _fill(self, threshold: int, groups: int) -> list[int] | None:
        starts: list[int] = []
        position = 0
        while position < len(self.lengths):
            if len(starts) == groups:
                return None
            starts.append(position)
            position += bisect_right(self.row(self.lengths[position]), threshold)
        return starts

    def _best_boundary(self, start: int, end: int) -> int:
        """Where to split a span in two so that the larger cost is smallest; the leftmost such place."""
        places = range(max(start + 1, end - self.most), min(end - 1, start + self.most) + 1)
        # The left cost grows with the boundary and the right one shrinks: the best place is where they cross.
        crossing = bisect_left(places, True, key=lambda m: self.cost_of(start, m) >= self.cost_of(m, end))
        nearby = places[max(crossing - 1, 0) : crossing + 1]
        return min(nearby, key=lambda m: (max(self.cost_of(start, m), self.cost_of(m, end)), m))
