"""Policies: who runs what in a step.

Two kinds, by what they are given. A *batch* policy gets the lengths of the next
B samples of the global order and only assigns them. A *window* policy gets the
gathered table of every rank's prefix costs and says how many each rank takes.
"""

from ddpsched.planning.policies.assignment import Assignment, Batch, BatchPolicy, WindowPolicy
from ddpsched.planning.policies.balanced import balanced
from ddpsched.planning.policies.minmax import minmax
from ddpsched.planning.policies.packed import packed
from ddpsched.planning.policies.static import static

BATCH: dict[str, BatchPolicy] = {"static": static, "balanced": balanced, "packed": packed}
WINDOW: dict[str, WindowPolicy] = {"minmax": minmax}

__all__ = ["BATCH", "WINDOW", "Assignment", "Batch", "BatchPolicy", "WindowPolicy"]
