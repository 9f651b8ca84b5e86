"""The least padding that so many micro-batches can have: a lower bound nearer to what can be reached.

No placement of at most M micro-batches on each of G ranks costs less than

    max( cost(1, longest), ceil( min over K <= M*G of (least padded work in K groups + K * fixed) / G ) )

The least padded work in K groups is that of a contiguous split of the line, by dynamic programming over its distinct
weights: D**2 * K operations, a few milliseconds. So plans carry the quick bound where a micro-batch has no fixed cost
(the two lie close then), and this one where it has, as long as D**2 * K is small.
"""

from collections.abc import Iterator
from itertools import islice

import numpy as np

from ddpsched.planning.solvers.allocation.problem import IntArray
from ddpsched.planning.solvers.partition.sorted_batch import Line, Span

UNREACHED = np.iinfo(np.int64).max // 4


def padded_bound(line: Line, world_size: int, max_microbatches: int) -> int:
    """Return a lower bound that counts padding; for linear costs.

    >>> from ddpsched.costs.cost_model import CostModel
    >>> from ddpsched.planning.solvers.partition.sorted_batch import line_of
    >>> line = line_of(np.array([9, 5, 5, 1, 1]), CostModel(0, 1, 0, scale=1))
    >>> padded_bound(line, 1, 3), padded_bound(line, 1, 2)
    (21, 29)
    """
    assert line.weights, "the bound needs a cost that is linear in the count"
    group = _groups(line)[2]
    shares, layers, least, before = list[int](), _layers(group), group[0], 0
    for groups in range(1, world_size * max_microbatches + 1):
        least = next(layers, least)
        total = int(least[-1]) + groups * line.fixed
        shares.append(-(-total // min(groups, world_size)))  # fewer groups than ranks leave ranks idle
        if groups > world_size and total >= before:  # work is convex in the groups, so it only rises from here
            break
        before = total
    return max(line.cost_of(0, 1), min(shares))


def penalised_bound(line: Line, world_size: int, max_microbatches: int, penalty: int) -> int:
    """Return a lower bound in one pass over the D distinct weights: a Lagrangian relaxation of :func:`padded_bound`.

    For any penalty p >= 0, K groups have at least this much work together, for every K up to M*G:

        min over all splits of (padded work + (fixed + p) * groups) - p * M*G

    The best p is what one more group would save. With a group that starts at place a, the work up to place b is linear
    in b, of slope ``weights[a]``. These lines come by falling slope and are evaluated at rising b, so the least of them
    is the head of a queue: O(D) steps.
    """
    slopes, heights = list[int](), list[int]()  # of each line, and its height at place 0
    head = least = 0
    for place, count in line.runs:
        weight = line.weights[place]
        height = least + line.fixed + penalty - weight * place
        while len(slopes) - head > 1 and (height - heights[-2]) * (slopes[-2] - slopes[-1]) <= (
            heights[-1] - heights[-2]
        ) * (slopes[-2] - weight):
            slopes.pop()  # it is nowhere the least of the last three
            heights.pop()
        slopes.append(weight)
        heights.append(height)
        end = place + count
        while (
            head + 1 < len(slopes) and slopes[head + 1] * end + heights[head + 1] <= slopes[head] * end + heights[head]
        ):
            head += 1
        least = slopes[head] * end + heights[head]
    work = least - penalty * min(world_size * max_microbatches, len(line))
    return max(line.cost_of(0, 1), -(-work // world_size))


def least_padded_spans(line: Line, most: int) -> list[Span]:
    """Return at most ``most`` spans whose costs, fixed ones included, have the least sum; for linear costs."""
    starts, ends, group = _groups(line)
    layers = list(islice(_layers(group), most))
    costs = [int(least[-1]) + groups * line.fixed for groups, least in enumerate(layers, 1)]
    last, spans = len(starts) - 1, []
    for least in reversed(layers[: costs.index(min(costs))]):
        first = int((_before(least) + group[:, last]).argmin())
        spans.append((int(starts[first]), int(ends[last])))
        last = first - 1
    return [(0, int(ends[last])), *reversed(spans)]


def _layers(group: IntArray) -> Iterator[IntArray]:
    """Yield, for K = 1 .. D, the least work of K groups up to each distinct weight, without fixed costs, (D,)."""
    least = group[0]
    for _ in range(len(group)):
        yield least
        least = (_before(least)[:, None] + group).min(axis=0)


def _before(least: IntArray) -> IntArray:
    """Return the least work of all that lies before a group that starts at each distinct weight."""
    return np.concatenate(([UNREACHED], least[:-1]))


def _groups(line: Line) -> tuple[IntArray, IntArray, IntArray]:
    """Return starts and ends of distinct weights, and ``group[i, j]``: the work of weights i .. j as one group."""
    starts, sizes = np.array(line.runs).T
    ends = starts + sizes
    counts = ends[None, :] - starts[:, None]
    return starts, ends, np.where(counts > 0, np.array(line.weights)[starts][:, None] * counts, UNREACHED)
