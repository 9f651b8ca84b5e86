"""An order in which the first steps of every rank meet every shape: ``compile.cover = "order"``.

An epoch's global batches stay as they are, and come in another order: those first that show ranks shapes which they
have not met. So each sample still comes once an epoch, and what is compiled in a step is compiled in the first ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ddpsched.costs.shape_menu import MenuCost, Shape, on_menu
from ddpsched.data.lengths import Lengths
from ddpsched.planning.assignment import Assignment
from ddpsched.planning.plan_spec import PlanSpec
from ddpsched.planning.steps.batches import GlobalBatch
from ddpsched.step_plan import Ids

Pair = tuple[int, Shape]  # a rank and a shape


@dataclass(frozen=True)
class Cover:
    """``order``: (N,), ids of an epoch. ``steps``: the first ones, after which no rank meets a new shape in it.

    ``met``: the ranks and shapes that met in these.
    """

    order: Ids
    steps: int
    met: frozenset[Pair]


def cover(spec: PlanSpec, lengths: Lengths, order: Ids, shapes: Sequence[Shape]) -> Cover:
    """Return the order with those batches first that show most ranks new shapes, one after another, greedily.

    ``spec``: of a policy that assigns batches. ``shapes``: of the menu of the ranks that batches are made for; neither
    changes where a run goes on with another number, and so the cover does not. Which rank gets which share may change
    from step to step, by turns that repeat after G steps; so the shapes of each batch are looked at for each turn.
    """
    cost = on_menu(spec.cost.model if isinstance(spec.cost, MenuCost) else spec.cost, shapes)
    assign: Callable[[GlobalBatch], Assignment] = getattr(spec.policy, "assign")  # noqa: B009 - policies stand above
    size, ranks = spec.global_batch, spec.ranks_of_batch
    number = len(order) // size
    batches, rest = order[: number * size].reshape(number, size), order[number * size :]
    sizes = lengths.lengths(order[: number * size]).reshape(number, size)

    def pairs(batch: int, turn: int) -> frozenset[Pair]:
        in_turn = spec.order.sorts
        chosen = assign(GlobalBatch(sizes[batch], size, ranks, turn, cost, pad_to=spec.pad_to, in_turn=in_turn))
        return frozenset(_pairs(chosen, sizes[batch], cost))

    by_turn = [[pairs(batch, turn) for batch in range(number)] for turn in range(ranks)]
    wanted = frozenset().union(*(each for turn in by_turn for each in turn))
    first, left, met, idle = list[int](), dict.fromkeys(range(number)), set[Pair](), 0
    while left and idle < ranks and not wanted <= met:
        turn = by_turn[len(first) % ranks]
        best = max(left, key=lambda batch: (len(turn[batch] - met), -batch))
        idle = 0 if turn[best] - met else idle + 1
        met |= turn[best]
        first.append(best)
        del left[best]
    steps = len(first) - idle
    return Cover(np.concatenate([batches[[*first, *left]].ravel(), rest]), steps, frozenset(met))


def _pairs(chosen: Assignment, lengths: np.ndarray, cost: MenuCost) -> list[Pair]:
    found, start = [], 0
    for rank, counts in enumerate(chosen.sizes):
        for count in counts:
            longest = int(lengths[chosen.positions[start : start + count]].max())
            found.append((rank, cost.shape(count, max(longest, chosen.pad_to))))
            start += count
    return found


def covering_order(shapes: Sequence[Shape], spec: PlanSpec, lengths: Lengths, order: Ids) -> Ids:
    """Return the order of :func:`cover`; with its shapes given, as ``PlanSpec.arrange`` takes it."""
    return cover(spec, lengths, order, shapes).order
