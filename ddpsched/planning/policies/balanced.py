"""balanced: the same global batch as static, split over ranks by length so that the costliest is cheapest."""

from typing import Literal

import numpy as np

from ddpsched.costs.shape_menu import MenuCost, Shape
from ddpsched.errors import InfeasibleError
from ddpsched.planning.assignment import Assignment
from ddpsched.planning.policies.batch_policy import BatchPolicy
from ddpsched.planning.policies.lockstep import in_lockstep
from ddpsched.planning.shapes.choose import falling_steps, rows_at_worst, sample_steps
from ddpsched.planning.shapes.search import search_shapes
from ddpsched.planning.shapes.trial_steps import CoverSteps, SortedSteps
from ddpsched.planning.solvers.partition.heterogeneous import uneven_split
from ddpsched.planning.solvers.partition.menu_cover import menu_split
from ddpsched.planning.solvers.partition.several import accumulate_split
from ddpsched.planning.solvers.partition.sorted_batch import line_of
from ddpsched.planning.steps.batches import GlobalBatch
from ddpsched.planning.steps.context import Context
from ddpsched.table import Positive

MOST_TRIALS, FEW_SAMPLES = 1024, 1280  # steps on which menus are judged; samples, where each is planned one by one
SIMILAR_MEMORY = 0.95  # ranks whose memories differ by less are planned for as if all had the smallest


class Balanced(BatchPolicy):
    """Split the batch by length into up to M padded micro-batches a rank:

        minimise  max_r sum_{m in rank r} cost(|m|, longest of m)

    The gradient is static's: the same samples, each weighing 1/B. One micro-batch a rank is solved to the proved
    optimum; so are up to M of them for few samples or few distinct lengths. Else they are planned by a heuristic with a
    lower bound, in which a larger M never costs more. Ranks that are alike take turns from step to step, so that none
    always holds the longest samples. Ranks that differ in speed or memory are planned for as they are.

    With ``lockstep`` all ranks have as many micro-batches, and run their m-th ones together, as ``sync.reshard`` needs
    it; the sum over these of the slowest rank's cost is made small.

    Options: ``max_microbatches``, M, the most micro-batches of a rank in a step; the cost decides how many.
    ``lookahead``, W, global batches planned at once; 1 keeps each as the order drew it. ``lockstep``.
    Source: :func:`accumulate_split` and :func:`uneven_split`, which hold the proofs.
    """

    kind: Literal["balanced"] = "balanced"
    max_microbatches: Positive = 1
    """M, the most micro-batches of a rank in a step; the cost decides how many."""
    lookahead: Positive = 1
    """W, global batches planned at once; 1 keeps each as the order drew it."""
    lockstep: bool = False
    """All ranks have as many micro-batches, and run them together."""

    def shapes(self, context: Context, most: int) -> list[Shape]:
        """Return rows and lengths on which trial steps of this epoch cost least."""
        spec, lengths = context.spec, context.lengths.lengths(context.order)
        at_worst = (rows_at_worst(spec, self.max_microbatches), int(lengths.max()))
        if self.max_microbatches == 1:
            batches = falling_steps(sample_steps(lengths, spec.global_batch, MOST_TRIALS))
            return search_shapes(SortedSteps(spec.cost, batches, spec.world_size), most, at_worst)
        batches = sample_steps(lengths, spec.global_batch, max(8, FEW_SAMPLES // spec.global_batch))
        steps = CoverSteps(spec.cost, batches, spec.world_size, self.max_microbatches)
        return search_shapes(steps, most, at_worst)

    def assign(self, batch: GlobalBatch) -> Assignment:
        """Return the split. Raises InfeasibleError where memory cannot hold the batch."""
        assert batch.lengths is not None, "check() refuses unknown lengths"
        if self.lockstep:
            return in_lockstep(batch, None, self.max_microbatches, packed=False)
        most, caps = self.max_microbatches, batch.caps
        if isinstance(batch.cost, MenuCost):
            assert (batch.slowness, caps) == (None, None), "the config refuses both beside a menu"
            split = menu_split(batch.lengths, batch.cost, batch.world_size, most)
            return _answer(batch, split, "menu of shapes", batch.step % batch.world_size)
        rooms = sorted([cap.room for cap in caps]) if caps else []
        if batch.slowness is not None or (rooms and rooms[0] / max(1, rooms[-1]) < SIMILAR_MEMORY):
            return _answer(batch, _uneven(batch, most), "uneven split", 0)
        limit = min(caps, key=lambda cap: cap.room).limit if caps else None
        split = accumulate_split(line_of(batch.lengths, batch.cost, limit), batch.world_size, most)
        method = "contiguous split" if most == 1 else "large items and filler"
        return _answer(batch, split, method, batch.step % batch.world_size)


def _uneven(batch: GlobalBatch, most: int) -> Assignment:
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
    return uneven_split(line, slowness, most, [cap.limit(ordered).tolist() for cap in batch.caps])


def _answer(batch: GlobalBatch, split: Assignment, method: str, turn: int) -> Assignment:
    """Return the split with the shares of ranks moved on by ``turn`` ranks."""
    assert split.costs is not None
    if turn:
        moved = sum(map(sum, split.sizes[:turn]))
        split.positions = np.concatenate((split.positions[moved:], split.positions[:moved]))
        split.sizes, split.costs = split.sizes[turn:] + split.sizes[:turn], split.costs[turn:] + split.costs[:turn]
    split.status = "optimal" if split.makespan == split.lower_bound else "feasible"
    split.method = method
    return batch.assigned(split)
