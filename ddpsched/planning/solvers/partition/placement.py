"""The answer of every solver that gives samples to ranks: who runs what, in which micro-batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from ddpsched.planning.solvers.allocation.problem import IntArray
from ddpsched.planning.solvers.partition.sorted_batch import Line, Span


@dataclass(frozen=True, eq=False)
class Placement:
    """Samples of one step, rank by rank and micro-batch by micro-batch.

    Attributes:
        positions: int64 `(B,)`, each position into the batch once.
        sizes: `sizes[r]`, how many samples each micro-batch of rank r takes from `positions`, in order.
        costs: of each rank, in the unit of the cost model.
        lower_bound: no placement has a smaller largest cost than this.
    """

    positions: IntArray
    sizes: tuple[tuple[int, ...], ...]
    costs: tuple[int, ...]
    lower_bound: int

    @property
    def makespan(self) -> int:
        return max(self.costs)


def placement_of(line: Line, ranks: Sequence[Sequence[Span]], costs: Sequence[int], lower_bound: int) -> Placement:
    """Spans of a line, `ranks[r]` those of rank r, as a placement."""
    order = line.order
    return Placement(
        np.concatenate([order[a:b] for a, b in chain.from_iterable(ranks)]),
        tuple(tuple([b - a for a, b in spans]) for spans in ranks),
        tuple(costs),
        lower_bound,
    )
