"""The micro-batches that a policy makes without a menu, from which the lengths of one are chosen."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

import numpy as np

from ddpsched.costs.cost_model import Int
from ddpsched.planning.assignment import Assignment

STEPS = 4096  # of an epoch that are looked at


@dataclass(frozen=True)
class Observed:
    """``counts``, ``longest``: of each micro-batch, (n,)."""

    counts: Int
    longest: Int


def observe(assignments: Iterable[Assignment], lengths: Int) -> Observed:
    """Return the micro-batches of an epoch's first steps. ``lengths``: (N,), of the samples in the epoch's order."""
    counts, longest = list[int](), list[Int]()
    for step in islice(assignments, STEPS):
        sizes = [size for rank in step.sizes for size in rank if size]
        if sizes:
            starts = np.cumsum([0, *sizes[:-1]])
            counts += sizes
            longest.append(np.maximum(np.maximum.reduceat(lengths[step.positions], starts), step.pad_to))
    return Observed(np.array(counts, dtype=np.int64), np.concatenate(longest))
