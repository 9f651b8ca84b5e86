"""Few samples, or few distinct lengths: the placement whose costliest rank is cheapest, proved.

    minimise  max_r f_r(x_r)   over x_1 + ... + x_G = N

``N`` counts the batch's samples of each of its D distinct lengths, ``x_r`` those that rank r runs, and ``f_r(x)`` is
the least cost of the samples x in at most M padded micro-batches on rank r. Both are found over all
S = prod(N_d + 1) subsets x of the batch.

Within a rank the micro-batches are contiguous by falling length, as :func:`min_max_split` shows for groups of any
owners: so f takes the longest samples of x as the first micro-batch, and the rest is a smaller subset. Without a floor
or a memory limit, a micro-batch ends where a length ends: a sample that is as long as the longest of the next one costs
no more there. With them every end is tried. Across ranks nothing is contiguous: the ranks are halved, and

    best_{g+h}(x) = min over y <= x of max(best_g(y), best_h(x - y)),

where equal ranks share their tables: log2 G of them. Fixed costs, floors, memory limits and ranks of different speed
are all in f_r.

Budget: at most ``STATES`` subsets, ``PAIRS`` first micro-batches (S times B with a floor or limits, else S times D),
and ``PAIRS`` pairs y <= x over all tables but the last one. What a search takes follows from N and the ranks alone, so
every rank of a run decides alike, and a search that is made for M is made for every larger M. It holds 12 samples of
any lengths on two ranks, 11 on four and 10 on eight, or on two ranks 24 samples of four lengths or 100 of two, in 0.2
to 9 ms. Left out as well are costs so large that their sums might not be integers of 64 bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np

from ddpsched.planning.solvers.allocation.problem import IntArray
from ddpsched.planning.solvers.partition.sorted_batch import Line, Span

STATES = 2**12
PAIRS = 2**18
UNREACHED = 2**61  # more than any cost; twice that is still an int64
MILLION = 10**6

Group = tuple[int, int]  # index of the longest sample's length, and how many samples
Limits = list[int] | None


def exact_split(
    line: Line, max_microbatches: int, slowness: Sequence[int], limits: Sequence[Limits]
) -> list[list[Span]] | None:
    """Return each rank's spans in a placement of the least makespan; for linear costs.

    ``slowness[r]``: in millionths; ``limits[r]``: along the line, the most samples of a micro-batch of rank r.
    None where the budget does not hold the batch, or no placement keeps to the limits.
    """
    counts = _counts(line, limits)
    if counts is None:
        return None
    kinds: list[tuple[int, Limits]] = []
    kind_of = []
    for kind in zip(slowness, limits, strict=True):
        if kind not in kinds:
            kinds.append(kind)
        kind_of.append(kinds.index(kind))
    order = sorted(range(len(kind_of)), key=kind_of.__getitem__)
    tree = tuple(kind_of[rank] for rank in order)
    if not _within_budget(line, counts, tree, max(slowness), any(own is not None for own in limits)):
        return None
    subsets = _Subsets(counts)
    costs = [_RankCosts.build(line, subsets, max_microbatches, rate, own) for rate, own in kinds]
    search = _Search(subsets, [cost.least for cost in costs])
    if search.makespan(tree) >= UNREACHED:
        return None
    groups = [
        (longest, size, rank)
        for rank, subset in zip(order, search.shares(tree, subsets.states - 1), strict=True)
        for longest, size in costs[kind_of[rank]].groups(subset)
    ]
    # Laid along the line with sizes and owners kept, no micro-batch gets a longer longest sample.
    ranks: list[list[Span]] = [[] for _ in slowness]
    start = 0
    for _, size, rank in sorted(groups):
        ranks[rank].append((start, start + size))
        start += size
    return ranks


def _counts(line: Line, limits: Sequence[Limits]) -> list[int] | None:
    """Return the number of samples of each kind: of equal weight, and equal limits on every rank, as these may differ
    where weights do not. None where they have too many subsets.
    """
    own = {id(each): each for each in limits if each is not None}.values()
    kinds = list(zip(line.weights, *own, strict=True))
    ends = [place + 1 for place in range(len(kinds)) if place + 1 == len(kinds) or kinds[place] != kinds[place + 1]]
    if len(ends) >= STATES.bit_length():  # 2 ** D at the least
        return None
    counts = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    return counts if prod(count + 1 for count in counts) <= STATES else None


def _within_budget(line: Line, counts: list[int], tree: tuple[int, ...], slowest: int, limited: bool) -> bool:
    states = prod(count + 1 for count in counts)
    pairs = prod((count + 1) * (count + 2) // 2 for count in counts)
    firsts = len(line) if limited or line.floored else len(counts)
    largest = line.cost_of(0, len(line)) * len(line) * (1 if slowest == MILLION else slowest)  # on the way to a cost
    return firsts * states <= PAIRS and pairs * len(_inner(tree)) <= PAIRS and largest < UNREACHED


def _inner(tree: tuple[int, ...]) -> set[tuple[int, ...]]:
    """The sets of ranks whose whole table is needed, of two ranks and more."""
    found: set[tuple[int, ...]] = set()
    open_sets = list(_halves(tree))
    while open_sets:
        part = open_sets.pop()
        if len(part) > 1 and part not in found:
            found.add(part)
            open_sets += _halves(part)
    return found


def _halves(tree: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    middle = len(tree) // 2
    return (tree[:middle], tree[middle:]) if middle else ()


class _Subsets:
    """All subsets of the batch, numbered so that the number of x - y is that of x less that of y.

    ``digits``: (D, S), how many samples of each length; the longest length has the largest ``stride``.
    """

    def __init__(self, counts: list[int]) -> None:
        self.counts = counts
        shape = [count + 1 for count in counts]
        self.digits = np.indices(shape).reshape(len(counts), -1)
        self.states = self.digits.shape[1]
        self.strides = [int(np.prod(shape[place + 1 :])) for place in range(len(shape))]

    @cached_property
    def pairs(self) -> tuple[IntArray, IntArray]:
        """Numbers of x and of y for each pair y <= x."""
        larger = smaller = np.zeros(1, dtype=np.int64)
        for count, stride in zip(self.counts, self.strides, strict=True):
            xs, ys = np.tril_indices(count + 1)
            larger = (larger[:, None] + xs * stride).ravel()
            smaller = (smaller[:, None] + ys * stride).ravel()
        return larger, smaller


@dataclass(frozen=True)
class _RankCosts:
    """``least``: (S,), what each subset costs one rank, slowness included; and how its micro-batches are found again.

    ``firsts``, ``rests``: (F, S), what the first micro-batch costs if it is cut at the f-th place, and the number of
    the subset that is left; ``by_count[k]``: (S,), the least cost in at most k micro-batches; ``longest``: (S,).
    """

    subsets: _Subsets
    least: IntArray
    firsts: IntArray
    rests: IntArray
    by_count: list[IntArray]
    longest: IntArray

    @classmethod
    def build(cls, line: Line, subsets: _Subsets, most: int, rate: int, limits: Limits) -> "_RankCosts":
        digits, strides, counts = subsets.digits, subsets.strides, subsets.counts
        longest = (digits > 0).argmax(axis=0)
        prices = _prices(line, counts, limits)
        sizes, rests = [], []
        taken, rest = np.zeros_like(longest), np.arange(subsets.states)
        for digit, count, stride in zip(digits, counts, strides, strict=True):
            # Without a floor or limits, all samples of a length go together; else any number of them.
            for own in [digit] if limits is None and not line.floored else range(1, count + 1):
                sizes.append(np.where(digit >= own, taken + own, -1))
                rests.append(rest - np.minimum(own, digit) * stride)
            taken, rest = taken + digit, rest - digit * stride
        firsts = prices[longest, np.stack(sizes)]  # a size of -1 reads the last column, which is UNREACHED
        left_over = np.stack(rests)
        empty = np.full(subsets.states, UNREACHED)
        empty[0] = 0
        by_count = [empty]
        for _ in range(min(most, len(line))):
            least = np.minimum((firsts + by_count[-1][left_over]).min(axis=0), by_count[-1])
            if np.array_equal(least, by_count[-1]):
                break
            by_count.append(least)
        least = by_count[-1]
        if rate != MILLION:
            least = np.where(least < UNREACHED, -(-np.where(least < UNREACHED, least, 0) * rate // MILLION), UNREACHED)
        return cls(subsets, least, firsts, left_over, by_count, longest)

    def groups(self, subset: int) -> list[Group]:
        """The micro-batches of a subset, as few as its least cost allows."""
        costs = [int(table[subset]) for table in self.by_count]
        left = costs.index(costs[-1])
        found: list[Group] = []
        while subset:
            first = int((self.firsts[:, subset] + self.by_count[left - 1][self.rests[:, subset]]).argmin())
            rest = int(self.rests[first, subset])
            size = int(self.subsets.digits[:, subset].sum() - self.subsets.digits[:, rest].sum())
            if size:
                found.append((int(self.longest[subset]), size))
            subset, left = rest, left - 1
        return found


def _prices(line: Line, counts: list[int], limits: Limits) -> IntArray:
    """(D, B + 2): what n samples cost, the longest of the d-th length; 0 for none, UNREACHED above the limit."""
    size = len(line)
    table = np.full((len(counts), size + 2), UNREACHED)
    start = 0
    for row, count in zip(table, counts, strict=True):
        most = size - start if limits is None else min(size - start, limits[start])
        row[0] = 0
        row[1 : most + 1] = [line.cost_of(start, start + n) for n in range(1, most + 1)]
        start += count
    return table


@dataclass
class _Search:
    """Tables of sets of ranks. ``ranks[kind]``: (S,), the least cost of each subset on one rank."""

    subsets: _Subsets
    ranks: list[IntArray]
    tables: dict[tuple[int, ...], IntArray] = field(default_factory=dict)

    def makespan(self, tree: tuple[int, ...]) -> int:
        """The least makespan of the whole batch."""
        if len(tree) == 1:
            return int(self.ranks[tree[0]][-1])
        first, second = map(self._table, _halves(tree))
        return int(np.maximum(first, second[::-1]).min())

    def shares(self, tree: tuple[int, ...], subset: int) -> list[int]:
        """Each rank's part of a subset: of the best halves, those with the least work together."""
        if len(tree) == 1:
            return [subset]
        halves = _halves(tree)
        first, second = map(self._table, halves)
        if subset == self.subsets.states - 1:
            parts = np.arange(self.subsets.states)
        else:
            larger, smaller = self.subsets.pairs
            parts = smaller[larger == subset]
        left, right = first[parts], second[subset - parts]
        largest = np.maximum(left, right)
        best = np.flatnonzero(largest == largest.min())
        part = int(parts[best[(left + right)[best].argmin()]])
        return self.shares(halves[0], part) + self.shares(halves[1], subset - part)

    def _table(self, tree: tuple[int, ...]) -> IntArray:
        if len(tree) == 1:
            return self.ranks[tree[0]]
        if tree not in self.tables:
            first, second = map(self._table, _halves(tree))
            larger, smaller = self.subsets.pairs
            table = np.full(self.subsets.states, UNREACHED)
            np.minimum.at(table, larger, np.maximum(first[smaller], second[larger - smaller]))
            self.tables[tree] = table
        return self.tables[tree]
