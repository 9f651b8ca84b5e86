"""axolotl's multipack: the shuffled data in rows by first-fit decreasing, one row a rank and step; packed rows.

Reimplemented: the package holds its own torch and transformers. Groups of 100,000 samples are packed apart, a row has
at most 200 samples, and rows that are left at the end, fewer than ranks, are dropped. Samples above a row's tokens are
dropped when the data are prepared; here a row holds the longest. Samples change their place by up to a group.
"""

from collections.abc import Iterator

from ddpsched.peers.budget import budgeted
from ddpsched.peers.peer import Problem, Step
from ddpsched.peers.rows import first_fit_decreasing

PACKAGE = "ddpsched's reimplementation"
GROUP, MOST = 100_000, 200  # its defaults


def _steps(problem: Problem, budget: int) -> Iterator[Step]:
    rows = []
    for start in range(0, len(problem.order), GROUP):
        lengths = problem.in_order[start : start + GROUP].tolist()
        rows += [[start + i for i in row] for row in first_fit_decreasing(lengths, budget, MOST)]
    for first in range(0, len(rows) - problem.world_size + 1, problem.world_size):
        yield [[problem.ids(row)] for row in rows[first : first + problem.world_size]]


PEERS = (budgeted("axolotl", PACKAGE, _steps, packed=True),)
