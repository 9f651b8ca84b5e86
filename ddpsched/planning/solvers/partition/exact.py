"""Few samples, or few distinct lengths: the placement whose costliest rank is cheapest, proved.

    minimise  max_r f_r(x_r)   over x_1 + ... + x_G = N

``N`` counts the batch's samples of each of its D distinct lengths, ``x_r`` those that rank r runs, and ``f_r(x)`` is
the least cost of the samples x in at most M padded micro-batches on rank r. Both are tabulated over all
S = prod(N_d + 1) subsets x of the batch.

Within a rank the micro-batches are contiguous by falling length, as :func:`min_max_split` shows for groups on any
ranks: so f takes the longest samples of x as the first micro-batch, and the rest is a smaller subset. Without a floor
or a memory limit, a micro-batch ends where a length ends: a sample that is as long as the longest of the next one costs
no more there. With them every end is tried. Across ranks nothing is contiguous: the ranks are halved, and

    best_{g+h}(x) = min over y <= x of max(best_g(y), best_h(x - y)),

where equal ranks share their tables: log2 G of them. Fixed costs, floors, memory limits and ranks of different speed
are all in f_r.

Budget: at most ``STATES`` subsets, ``PAIRS`` first micro-batches (S times B with a floor or limits, else S times D),
and ``PAIRS`` pairs y <= x over all tables but the last one. The size of a search follows from N and the ranks alone,
so every rank of a run decides alike, and a search that is made for M is made for every larger M. The budget allows 12
samples of any lengths on two ranks, 11 on four and 10 on eight, or on two ranks 24 samples of four lengths or 100 of
two, in 0.2 to 9 ms. Costs are left out whose sums might not be integers of 64 bits.
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import groupby
from math import prod

import numpy as np

from ddpsched.costs.rank_speed import slowed
from ddpsched.planning.solvers.allocation.problem import IntArray
from ddpsched.planning.solvers.partition.sorted_batch import Line, Ranks

STATES = 2**12
PAIRS = 2**18
UNREACHED = 2**61  # more than any cost; twice that is still an int64
MILLION = 10**6

Tree = tuple[int, ...]  # the kinds of some ranks, halved again and again
Limits = list[int] | None


def exact_split(line: Line, max_microbatches: int, slowness: Sequence[int], limits: Sequence[Limits]) -> Ranks | None:
    """Return each rank's spans in a placement of the least makespan; for linear costs.

    ``slowness[r]``: in millionths; ``limits[r]``: along the line, the most samples of a micro-batch of rank r.
    None where the budget does not hold the batch, or no placement keeps to the limits.
    """
    counts = _counts(line, limits)
    if counts is None:
        return None
    kinds: list[tuple[int, Limits]] = []
    for kind in zip(slowness, limits, strict=True):
        if kind not in kinds:
            kinds.append(kind)
    kind_of = [kinds.index(kind) for kind in zip(slowness, limits, strict=True)]
    tree = tuple(sorted(kind_of))
    states = prod(count + 1 for count in counts)
    pairs = prod((count + 1) * (count + 2) // 2 for count in counts)
    firsts = len(line) if line.floored or any(limits) else len(counts)
    largest = line.cost_of(0, len(line)) * len(line)  # on the way to a cost
    if max(slowness) != MILLION:
        largest *= max(slowness)
    if firsts * states > PAIRS or pairs * len(_inner(tree)) > PAIRS or largest >= UNREACHED:
        return None
    subsets = _Subsets(counts)
    costs = [_RankCosts(line, subsets, max_microbatches, rate, each) for rate, each in kinds]
    subsets.tables = {(kind,): cost.least for kind, cost in enumerate(costs)}
    order = sorted(range(len(kind_of)), key=kind_of.__getitem__)
    shares = dict(zip(order, subsets.shares(tree, subsets.states - 1), strict=True))
    if max(costs[kind_of[rank]].least[share] for rank, share in shares.items()) >= UNREACHED:
        return None
    groups = [
        (longest, size, rank) for rank, share in shares.items() for longest, size in costs[kind_of[rank]].groups(share)
    ]
    # Along the line, with sizes and ranks kept, no micro-batch gets a longer longest sample.
    ranks: Ranks = [[] for _ in slowness]
    start = 0
    for _, size, rank in sorted(groups):
        ranks[rank].append((start, start + size))
        start += size
    return ranks


def _counts(line: Line, limits: Sequence[Limits]) -> list[int] | None:
    """Return the number of samples of each kind: of equal weight, and equal limits on every rank, as these may differ
    where weights do not. None where they have too many subsets.
    """
    distinct = {id(each): each for each in limits if each is not None}.values()
    counts = [len(list(equal)) for _, equal in groupby(zip(line.weights, *distinct, strict=True))]
    few = len(counts) < STATES.bit_length()  # else 2 ** D subsets at the least
    return counts if few and prod(count + 1 for count in counts) <= STATES else None


def _inner(tree: Tree) -> set[Tree]:
    """Return the sets of ranks whose whole table is needed, of two ranks and more."""
    halves = {half for half in _halves(tree) if len(half) > 1}
    return halves.union(*map(_inner, halves))


def _halves(tree: Tree) -> tuple[Tree, ...]:
    middle = len(tree) // 2
    return (tree[:middle], tree[middle:]) if middle else ()


class _Subsets:
    """All subsets of the batch, numbered so that the number of x - y is that of x less that of y.

    ``digits``: (D, S), how many samples of each length; the longest length has the largest ``stride``. ``tables``: of
    sets of ranks, the least makespan of each subset on them, (S,).
    """

    def __init__(self, counts: list[int]) -> None:
        self.counts, shape = counts, [count + 1 for count in counts]
        self.digits = np.indices(shape).reshape(len(counts), -1)
        self.states = self.digits.shape[1]
        self.strides = [prod(shape[place + 1 :]) for place in range(len(shape))]
        self.tables: dict[Tree, IntArray] = {}

    @cached_property
    def pairs(self) -> tuple[IntArray, IntArray]:
        """Numbers of x and of y for each pair y <= x."""
        larger = smaller = np.zeros(1, dtype=np.int64)
        for count, stride in zip(self.counts, self.strides, strict=True):
            xs, ys = np.tril_indices(count + 1)
            larger = (larger[:, None] + xs * stride).ravel()
            smaller = (smaller[:, None] + ys * stride).ravel()
        return larger, smaller

    def shares(self, tree: Tree, subset: int) -> list[int]:
        """Return each rank's part of a subset: of the best halves, those with the least work together."""
        if len(tree) == 1:
            return [subset]
        first, second = _halves(tree)
        parts = np.flatnonzero((self.digits <= self.digits[:, subset, None]).all(axis=0))
        left, right = self._table(first)[parts], self._table(second)[subset - parts]
        largest = np.maximum(left, right)
        best = np.flatnonzero(largest == largest.min())
        part = int(parts[best[(left + right)[best].argmin()]])
        return self.shares(first, part) + self.shares(second, subset - part)

    def _table(self, tree: Tree) -> IntArray:
        if tree not in self.tables:
            first, second = map(self._table, _halves(tree))
            larger, smaller = self.pairs
            self.tables[tree] = np.full(self.states, UNREACHED)
            np.minimum.at(self.tables[tree], larger, np.maximum(first[smaller], second[larger - smaller]))
        return self.tables[tree]


class _RankCosts:
    """The cost of each subset on one rank, and its micro-batches.

    ``least``: (S,), the least cost, slowness included. ``firsts``, ``rests``: (F, S), the cost of the first micro-batch
    if it is cut at the f-th place, and the number of the subset that is left. ``by_count[k]``: (S,), the least cost in
    at most k micro-batches. ``longest``: (S,), the index of the longest sample's length.
    """

    def __init__(self, line: Line, subsets: _Subsets, most: int, rate: int, limits: Limits) -> None:
        digits, self.sizes = subsets.digits, subsets.digits.sum(axis=0)
        self.longest = (digits > 0).argmax(axis=0)
        sizes, rests = [], []
        taken, rest = np.zeros_like(self.longest), np.arange(subsets.states)
        for digit, count, stride in zip(digits, subsets.counts, subsets.strides, strict=True):
            # Without a floor or limits, all samples of a length go together; else any number of them.
            for number in [digit] if limits is None and not line.floored else range(1, count + 1):
                sizes.append(np.where(digit >= number, taken + number, -1))
                rests.append(rest - np.minimum(number, digit) * stride)
            taken, rest = taken + digit, rest - digit * stride
        # a size of -1 reads the last column, which is UNREACHED
        self.firsts = _prices(line, subsets.counts, limits)[self.longest, np.stack(sizes)]
        self.rests = np.stack(rests)
        least = np.full(subsets.states, UNREACHED)
        least[0] = 0
        self.by_count = [least]
        for _ in range(min(most, len(line))):
            least = np.minimum((self.firsts + least[self.rests]).min(axis=0), least)
            if np.array_equal(least, self.by_count[-1]):
                break
            self.by_count.append(least)
        if rate != MILLION:
            least = np.where(least < UNREACHED, slowed(np.where(least < UNREACHED, least, 0), rate), UNREACHED)
        self.least = least

    def groups(self, subset: int) -> list[tuple[int, int]]:
        """Return the micro-batches of a subset, as few as its least cost allows: the longest's index, and the size."""
        costs = [int(table[subset]) for table in self.by_count]
        left = costs.index(costs[-1])
        groups = []
        while subset:
            first = int((self.firsts[:, subset] + self.by_count[left - 1][self.rests[:, subset]]).argmin())
            rest = int(self.rests[first, subset])
            if rest != subset:
                groups.append((int(self.longest[subset]), int(self.sizes[subset] - self.sizes[rest])))
            subset, left = rest, left - 1
        return groups


def _prices(line: Line, counts: list[int], limits: Limits) -> IntArray:
    """Return the cost of n samples, the longest of the d-th length, (D, B + 2); UNREACHED above the limit."""
    size, start = len(line), 0
    table = np.full((len(counts), size + 2), UNREACHED)
    table[:, 0] = 0
    for row, count in zip(table, counts, strict=True):
        most = min(size - start, size if limits is None else limits[start])
        row[1 : most + 1] = [line.cost_of(start, start + n) for n in range(1, most + 1)]
        start += count
    return table
