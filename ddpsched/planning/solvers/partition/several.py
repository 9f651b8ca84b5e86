"""Several padded micro-batches a rank: spans of the line placed on ranks, for linear costs.

    minimise  max_r sum_{m in rank r} cost(|m|, longest of m)   with at most M micro-batches m on a rank

The optimum is proved for one micro-batch a rank (:func:`split_line`), for few samples or few distinct lengths
(:func:`exact_split`) and for one rank (:func:`least_padded_spans`). Else this is a heuristic, and a lower bound shows
by how much it can be off: no micro-batches have less work than the real tokens, each rank that works pays ``fixed`` at
least once, and some rank runs the longest sample:

    makespan >= max(cost(1, longest), ceil(sum of weights / G) + fixed)

A larger M never costs more: the result is the best of all counts m of micro-batches up to M, and what is tried for a
count does not depend on M. Counts are tried from M downwards. A smaller one is left out only where a bound proves that
it cannot be better, so most steps try one or two.
"""

from dataclasses import dataclass, field

from ddpsched.errors import InfeasibleError
from ddpsched.planning.assignment import Assignment
from ddpsched.planning.solvers.partition.exact import MILLION, exact_split
from ddpsched.planning.solvers.partition.large_items import SPARE, counts_to_try, level_ranks, placements
from ddpsched.planning.solvers.partition.min_max_split import least_makespan, split_line
from ddpsched.planning.solvers.partition.padding_bound import least_padded_spans, padded_bound, penalised_bound
from ddpsched.planning.solvers.partition.sorted_batch import Line, Ranks, most_within

QUICK = 10**7  # operations, some 10 ms
PENALTIES = (3, 6)  # halves of the estimate; these two prove most of what any penalty proves on SST-2


def accumulate_split(line: Line, world_size: int, max_microbatches: int) -> Assignment:
    """Return the best placement found of at most ``max_microbatches`` spans on each of ``world_size`` equal ranks.

    The cost decides how many a rank gets. A larger ``max_microbatches`` never raises the makespan. Where the makespan
    is proved, ``lower_bound`` equals it. Raises InfeasibleError where memory allows no placement.

    >>> import numpy as np
    >>> from ddpsched.costs.cost_model import padded_tokens
    >>> from ddpsched.planning.solvers.partition.sorted_batch import line_of
    >>> line = line_of(np.array([100, 3, 2, 1, 100]), padded_tokens)
    >>> accumulate_split(line, world_size=2, max_microbatches=2).makespan
    104
    """
    most = usable(line, world_size, max_microbatches)
    if most == 1:
        return line.assignment(*_one_each(line, world_size))
    bound = lower_bound(line, world_size, most)
    best = _best_of_counts(line, world_size, most, bound)
    if best.makespan > bound:
        exact = exact_split(line, most, [MILLION] * world_size, [line.limits] * world_size)
        if exact is not None:
            best.offer(exact, line.costs(exact))
            bound = best.makespan
    return line.assignment(best.ranks, bound)


def usable(line: Line, world_size: int, max_microbatches: int) -> int:
    """Return how many micro-batches of a rank are of use; a larger number is planned as this one.

    Each of min(G, B) ranks has a sample, since a micro-batch of a rank with several can move to an idle one. Without a
    memory limit, micro-batches of a rank whose longest samples are equally long are better joined: one length needs one
    micro-batch, and D lengths no more than D, though the heuristic may use up to ``SPARE``.
    """
    most = min(max_microbatches, len(line) - min(world_size, len(line)) + 1)
    if most == 1:
        return 1
    assert line.weights, "several micro-batches need a cost that is linear in the count"
    if line.limits is not None:
        return most
    if line.weights[0] == line.weights[-1]:
        return 1
    return most if most <= SPARE else min(most, max(SPARE, len(line.runs)))


def fewest_microbatches(line: Line, world_size: int) -> int:
    """Return how many micro-batches some rank needs at least, for memory's sake."""
    if line.limits is None:
        return 1
    spans = start = 0
    while start < len(line):
        start, spans = start + line.take(line.cost_of(0, len(line)), start), spans + 1
    return -(-spans // world_size)


def lower_bound(line: Line, world_size: int, max_microbatches: int) -> int:
    """Return a lower bound of ``max_microbatches`` a rank: the module's quick one, or one that counts padding."""
    if (line.fixed or world_size == 1) and len(line.runs) ** 2 * world_size * max_microbatches < QUICK:
        return padded_bound(line, world_size, max_microbatches)
    return max(line.cost_of(0, 1), -(-line.work // world_size) + line.fixed)


@dataclass
class _Best:
    """The best placement so far: its makespan and each rank's spans."""

    makespan: int
    ranks: Ranks = field(default_factory=list)

    def offer(self, ranks: Ranks, costs: list[int]) -> None:
        """Take this placement if its makespan is smaller."""
        if max(costs) < self.makespan:
            self.makespan, self.ranks = max(costs), ranks


def _best_of_counts(line: Line, world_size: int, most: int, bound: int) -> _Best:
    """Return the best of the first placement and of each count up to ``most``; ``bound``: where to stop.

    No rank of a cheaper placement needs more micro-batches than fit into its cost, so above that (and ``SPARE`` more)
    only doublings are tried, which help to level the ranks. A larger ``most`` ends no worse: its run comes to each
    smaller count with a makespan that is no larger, and leaves out only what cannot get below that.
    """
    best, fewest = _first(line, world_size, most)
    within = most_within(line, None if line.limits is None else [line.limits])
    useful, lowest = SPARE + within(best.makespan - 1), max(2, fewest)
    # exchanges may level what begins dearer than the first placement, unless that is one micro-batch a rank
    below = best.makespan if fewest == 1 else (line.cost_of(0, len(line)) + line.fixed) * len(line) + 1
    if world_size == 1 and line.limits is None and not line.floored:  # nothing to level: the least padding is best
        quick = min(most, useful, QUICK // len(line.runs) ** 2)
        if quick > 1:
            alone = [least_padded_spans(line, quick)]
            best.offer(alone, line.costs(alone))
            lowest = quick + 1
    spare = int(line.floored or line.limits is not None)  # exchanges level these better with one more micro-batch
    tried = counts_to_try(lowest, useful, most)
    for count in reversed(tried):
        room = min(count + spare, most)
        if best.makespan <= bound or (count < tried[-1] and _fewer_cost_more(line, world_size, room, best.makespan)):
            break
        for placement in placements(line, world_size, count, below, best.makespan):
            for allowed in range(count, room + 1):
                ranks = placement.spans(line)
                best.offer(ranks, level_ranks(line, ranks, allowed))
        if fewest > 1:
            best.offer(*_lightest_first(line, world_size, count))
    if not best.ranks:
        best.ranks, _ = _one_each(line, world_size)
    return best


def _first(line: Line, world_size: int, most: int) -> tuple[_Best, int]:
    """Return a placement with as few micro-batches a rank as memory allows, and how many: the same for every ``most``.

    The spans of one micro-batch a rank are left out until they are needed. Raises InfeasibleError.
    """
    try:
        return _Best(least_makespan(line, min(world_size, len(line)))), 1
    except InfeasibleError:
        fewest = fewest_microbatches(line, world_size)
        if fewest > most:
            raise
    ranks, costs = _lightest_first(line, world_size, fewest)
    return _Best(max(costs), ranks), fewest


def _fewer_cost_more(line: Line, world_size: int, count: int, makespan: int) -> bool:
    """Return whether it is proved that up to ``count`` micro-batches a rank never cost less than ``makespan``.

    The saving of one more group is estimated as if padding fell as 1 / groups from what the makespan leaves for it, and
    penalties are multiples of that. Where each distinct weight may have its group, only fixed costs can prove anything.
    """
    if not line.fixed and len(line.runs) <= world_size * count:
        return False
    padding = world_size * (makespan - line.fixed * (count + 1)) - line.work
    saved = padding * (count + 1) / (world_size * count**2)
    return any(
        penalised_bound(line, world_size, count, max(1, round(times * saved / 2) - line.fixed)) >= makespan
        for times in PENALTIES
    )


def _lightest_first(line: Line, world_size: int, count: int) -> tuple[Ranks, list[int]]:
    """Return as many spans as there may be, where memory is tight: by falling cost, each on the lightest rank."""
    spans, _ = split_line(line, world_size * count)
    ranks: Ranks = [[] for _ in range(world_size)]
    loads = [0] * world_size
    for a, b in sorted(spans, key=lambda span: (-line.cost_of(*span), span)):
        rank = min((r for r in range(world_size) if len(ranks[r]) < count), key=loads.__getitem__)
        ranks[rank].append((a, b))
        loads[rank] += line.cost_of(a, b)
    return ranks, loads


def _one_each(line: Line, world_size: int) -> tuple[Ranks, int]:
    spans, makespan = split_line(line, world_size)
    return [[span] for span in spans] + [[]] * (world_size - len(spans)), makespan
