"""Policies: who runs what in a step.

Three kinds, by what they are given. A *batch* policy gets the lengths of the next
B samples of the global order and only assigns them. A *window* policy gets the
gathered table of every rank's prefix costs and says how many each rank takes. A
*filling* policy gets the whole epoch in order and fills micro-batches of sizes of
their own, so that B varies.

::

    static.py         equal counts, whatever the lengths
    minmax.py         counts over each rank's own window
    balanced.py       the same global batch, split by length
    packed.py         the same, rows without padding
    token_budget.py   as many samples as a budget of tokens allows
    bins.py           ranges of length with batch sizes of their own
    pool.py           what fits together, from each rank's pool
    assignment.py     what policies are given and answer
    filling.py        the same for those that fill micro-batches
"""

from ddpsched.planning.policies.assignment import Assignment, Batch, BatchPolicy, WindowPolicy
from ddpsched.planning.policies.balanced import balanced
from ddpsched.planning.policies.bins import bins
from ddpsched.planning.policies.filling import Filled, FillingPolicy, Supply
from ddpsched.planning.policies.minmax import minmax
from ddpsched.planning.policies.packed import packed
from ddpsched.planning.policies.pool import pool
from ddpsched.planning.policies.static import static
from ddpsched.planning.policies.token_budget import token_budget

BATCH: dict[str, BatchPolicy] = {"static": static, "balanced": balanced, "packed": packed}
WINDOW: dict[str, WindowPolicy] = {"minmax": minmax}
FILL: dict[str, FillingPolicy] = {"token_budget": token_budget, "bins": bins, "pool": pool}

__all__ = [
    "BATCH",
    "FILL",
    "WINDOW",
    "Assignment",
    "Batch",
    "BatchPolicy",
    "Filled",
    "FillingPolicy",
    "Supply",
    "WindowPolicy",
]
