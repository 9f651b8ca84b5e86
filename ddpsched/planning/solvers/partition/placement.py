"""Spans of a sorted batch as an assignment of its samples."""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from ddpsched.planning.assignment import Assignment
from ddpsched.planning.solvers.partition.sorted_batch import Line, Span


def assignment_of(line: Line, ranks: Sequence[Sequence[Span]], costs: Sequence[int], lower_bound: int) -> Assignment:
    """Return the assignment in which rank r runs the spans ``ranks[r]`` of a line."""
    order = line.order
    return Assignment(
        np.concatenate([order[a:b] for a, b in chain.from_iterable(ranks)]),
        tuple(tuple([b - a for a, b in spans]) for spans in ranks),
        tuple(costs),
        lower_bound,
    )
