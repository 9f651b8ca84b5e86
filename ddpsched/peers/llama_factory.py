"""LLaMA-Factory's packing: chunks of 1,000 samples in rows by a greedy knapsack, rows in random order; packed rows.

Reimplemented: the package holds its own transformers and datasets. Samples above a row's tokens are dropped with a
warning; here a row holds the longest. Rows are padded to their size there, and attend across samples unless
``neat_packing`` is set.
"""

from collections.abc import Iterator

import numpy as np

from ddpsched.peers.budget import budgeted
from ddpsched.peers.peer import Problem, Step
from ddpsched.peers.rows import knapsacks, shuffled_rows

PACKAGE = "ddpsched's reimplementation"
CHUNK = 1000  # its preprocessing_batch_size


def _steps(problem: Problem, budget: int) -> Iterator[Step]:
    rows = []
    for start in range(0, len(problem.lengths), CHUNK):
        lengths = problem.lengths[start : start + CHUNK].tolist()
        rows += [np.array(row, dtype=np.int64) + start for row in knapsacks(lengths, budget)]
    return shuffled_rows(problem, rows)


PEERS = (budgeted("llama_factory", PACKAGE, _steps, packed=True),)
