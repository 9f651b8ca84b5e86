"""fairseq's ``max_tokens`` batches: sorted by length, cut where the padded size is full, shuffled, dealt in turn.

Ott et al. (2019), "fairseq: A Fast, Extensible Toolkit for Sequence Modeling". Reimplemented: fairseq 0.12.2,
the last release, has an extension that no longer builds and needs an omegaconf that pip refuses since 24.1.
"""

from bisect import bisect_right
from collections.abc import Iterator
from functools import partial

import numpy as np

from ddpsched.peers.budget import budgeted
from ddpsched.peers.peer import Problem, Step

PACKAGE = "ddpsched's reimplementation"


def batches_by_size(lengths: list[int], max_tokens: int, multiple: int) -> Iterator[range]:
    """Yield ranges of rising ``lengths``: count * longest <= max_tokens, the count a multiple or else below it.

    >>> list(batches_by_size([2, 2, 2, 3, 3, 4, 9], 9, 2))
    [range(0, 2), range(2, 4), range(4, 6), range(6, 7)]
    """
    start = 0
    while start < len(lengths):
        counts = range(1, min(max_tokens // lengths[start], len(lengths) - start) + 1)
        # as many as fit: the padded size rises with the count
        size = bisect_right(counts, max_tokens, key=lambda n: n * lengths[start + n - 1])
        size -= size % multiple if size > multiple else 0
        yield range(start, start + size)
        start += size


def _steps(problem: Problem, budget: int, multiple: int) -> Iterator[Step]:
    """Yield batches that are made once, from the seed, and shuffled each epoch. Ranks left at the end get nothing."""
    shuffled = np.random.default_rng(problem.seed).permutation(len(problem.lengths))
    # ids: (N,), by rising length, equal ones in random order
    ids = shuffled[np.argsort(problem.lengths[shuffled], kind="stable")]
    batches = [ids[r.start : r.stop] for r in batches_by_size(problem.lengths[ids].tolist(), budget, multiple)]
    turns = np.random.default_rng([problem.seed, problem.epoch]).permutation(len(batches)).tolist()
    for start in range(0, len(turns), problem.world_size):
        step = [[batches[turn]] for turn in turns[start : start + problem.world_size]]
        yield step + [[] for _ in range(problem.world_size - len(step))]


PEERS = (
    budgeted("fairseq", PACKAGE, partial(_steps, multiple=1)),
    budgeted("fairseq_multiple_8", PACKAGE, partial(_steps, multiple=8)),  # its default
)
