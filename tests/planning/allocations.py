"""Allocation problems, and their answers by brute force, for tests."""

import itertools
from functools import cache

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from ddpsched.planning.solvers.allocation import Allocation

IntArray = npt.NDArray[np.int64]


@cache
def all_counts(caps: tuple[int, ...], batch_size: int) -> IntArray:
    """Return every feasible row of counts, lexicographically largest first, without the package's code."""
    ranges = [range(cap, 0, -1) if cap else [0] for cap in caps]
    rows = np.array(list(itertools.product(*ranges)), dtype=np.int64)
    return rows[rows.sum(axis=1) == batch_size]


def brute_force(costs: IntArray, batch_size: int, caps: IntArray) -> tuple[list[int], int]:
    """Return the best counts and their makespan.

    Ties go to the least n sum c^2 - (sum c)^2 over the ranks that take part.
    """
    counts = all_counts(tuple(caps.tolist()), batch_size)
    taking_part = caps > 0
    chosen = costs[np.flatnonzero(taking_part), counts[:, taking_part] - 1].astype(object)
    largest = chosen.max(axis=1)
    variance = chosen.shape[1] * (chosen * chosen).sum(axis=1) - chosen.sum(axis=1) ** 2
    best = min(range(len(counts)), key=lambda i: (largest[i], variance[i], i))
    return counts[best].tolist(), int(largest[best])


def check(allocation: Allocation, costs: IntArray, batch_size: int, caps: IntArray) -> None:
    """Check that `allocation` equals brute force's answer and reports it correctly."""
    counts, makespan = brute_force(costs, batch_size, caps)
    assert allocation.counts.dtype == np.int64
    assert allocation.counts.tolist() == counts
    assert (allocation.makespan, allocation.lower_bound) == (makespan, makespan)
    assert (allocation.status, allocation.tie_break) == ("optimal", "exact")


def instance(rng: np.random.Generator, falling: bool = False) -> tuple[IntArray, int, IntArray]:
    """Return a small problem. Few distinct costs make ties and plateaus; some caps are 0, and some costs are huge."""
    world_size, window = int(rng.integers(1, 5)), int(rng.integers(1, 7))
    costs = rng.integers(0, rng.choice([2, 4, 12, 60, 10**6, 2**61]), (world_size, window))
    if not falling:
        costs = np.maximum.accumulate(costs, axis=1)
    caps = rng.integers(rng.integers(0, 2), window + 1, world_size)
    caps[rng.integers(world_size)] = window
    return costs, int(rng.integers((caps > 0).sum(), caps.sum() + 1)), caps


@st.composite
def instances(draw: st.DrawFn, falling: bool = False) -> tuple[IntArray, int, IntArray]:
    world_size, window = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    entries = st.integers(0, draw(st.sampled_from([1, 3, 20, 2**62])))
    costs = np.array(
        draw(st.lists(entries, min_size=world_size * window, max_size=world_size * window)), dtype=np.int64
    ).reshape(world_size, window)
    if not falling:
        costs = np.maximum.accumulate(costs, axis=1)
    caps = np.array(draw(st.lists(st.integers(0, window), min_size=world_size, max_size=world_size)))
    caps[draw(st.integers(0, world_size - 1))] = window
    return costs, draw(st.integers(int((caps > 0).sum()), int(caps.sum()))), caps
