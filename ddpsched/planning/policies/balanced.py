"""balanced: the same global batch as static, split over ranks by length so that the costliest is cheapest.

The gradient is static's: the same samples, each weighing 1/B. One padded
micro-batch a rank is solved to the proved optimum; so are up to M of them, where
the config allows it, for few samples or few distinct lengths. Else they are
planned by a heuristic with a bound, in which a larger M never costs more.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from ddpsched.costs.memory_cap import Cap
from ddpsched.errors import InfeasibleError
from ddpsched.planning.assignment import Assignment
from ddpsched.planning.policies.batch_policy import BatchPolicy
from ddpsched.planning.solvers.partition.heterogeneous import uneven_split
from ddpsched.planning.solvers.partition.several import accumulate_split
from ddpsched.planning.solvers.partition.sorted_batch import line_of
from ddpsched.planning.steps.batches import Batch
from ddpsched.table import Positive

ALIKE = 0.95  # ranks whose memories lie within this share are planned for as if all had the smallest


class Balanced(BatchPolicy):
    """Split by :func:`accumulate_split`, or :func:`uneven_split` where ranks differ in speed or memory.

    Ranks that are alike take turns from step to step, so that none always holds the longest samples.
    """

    kind: Literal["balanced"] = "balanced"
    max_microbatches: Positive = 1  # M, most micro-batches of a rank in a step; the cost chooses how many
    lookahead: Positive = 1  # W, global batches planned at once; 1 keeps each as the order drew it

    @property
    def batches_at_once(self) -> int:
        return self.lookahead

    @property
    def most_microbatches(self) -> int:
        return self.max_microbatches

    def assign(self, batch: Batch) -> Assignment:
        """Raises InfeasibleError where memory cannot hold the batch."""
        assert batch.lengths is not None, "check() refuses unknown lengths"
        most, tightest = self.max_microbatches, None
        if batch.caps is not None:
            tightest = min(batch.caps, key=lambda cap: cap.room)
        unlike = batch.caps is not None and _spread(batch.caps) < ALIKE
        if batch.slowness is not None or unlike:
            return _answer(batch, _uneven(batch, most), "uneven split", 0)
        limit = None if tightest is None else tightest.limit
        found = accumulate_split(line_of(batch.lengths, batch.cost, limit), batch.world_size, most)
        method = "contiguous split" if most == 1 else "large items and filler"
        return _answer(batch, found, method, batch.step % batch.world_size)


def _spread(caps: Sequence[Cap]) -> float:
    """The smallest memory as a share of the largest."""
    rooms = [cap.room for cap in caps]
    return min(rooms) / max(1, max(rooms))


def _uneven(batch: Batch, most: int) -> Assignment:
    assert batch.lengths is not None
    if not batch.cost.linear:
        raise InfeasibleError(
            "ranks that differ in memory or speed need a cost that adds up over samples, which padded_tokens_squared "
            "does not; use cost.kind = 'padded_tokens' with gamma, or give every rank the same memory.budget_bytes"
        )
    slowness = batch.slowness or (10**6,) * batch.world_size
    if batch.caps is None:
        return uneven_split(line_of(batch.lengths, batch.cost), slowness, most)
    roomiest = max(batch.caps, key=lambda cap: cap.room)
    line = line_of(batch.lengths, batch.cost, roomiest.limit)
    ordered = batch.lengths[line.order]
    limits = [cap.limit(ordered).tolist() for cap in batch.caps]
    return uneven_split(line, slowness, most, limits)


def _answer(batch: Batch, found: Assignment, method: str, turn: int) -> Assignment:
    """``turn``: by how many ranks the groups move on."""
    sizes, costs, positions = found.sizes, found.costs, found.positions
    assert costs is not None
    if turn:
        moved = sum(map(sum, sizes[:turn]))
        positions = np.concatenate((positions[moved:], positions[:moved]))
        sizes, costs = sizes[turn:] + sizes[:turn], costs[turn:] + costs[:turn]
    status = "optimal" if max(costs) == found.lower_bound else "feasible"
    return batch.assigned(positions, sizes, costs=costs, lower_bound=found.lower_bound, status=status, method=method)
