"""packed: the same global batch as static, rows without padding, the costliest rank cheapest.

A rank's samples lie end to end in one row, each attending to itself alone; so a
row costs the sum over its samples, and any sample may go to any rank.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from ddpsched.costs.rank_speed import slowed
from ddpsched.errors import InfeasibleError
from ddpsched.planning.assignment import Assignment
from ddpsched.planning.policies.batch_policy import BatchPolicy
from ddpsched.planning.solvers.partition.lpt import balance
from ddpsched.planning.steps.batches import Batch
from ddpsched.table import Positive


class Packed(BatchPolicy):
    """Balance by :func:`balance`; ranks that are alike take turns from step to step."""

    kind: Literal["packed"] = "packed"
    lookahead: Positive = 1  # W, global batches planned at once; 1 keeps each as the order drew it

    @property
    def batches_at_once(self) -> int:
        return self.lookahead

    @property
    def packs(self) -> bool:
        return True

    def assign(self, batch: Batch) -> Assignment:
        """One row a rank, or as many as its memory needs.

        Raises InfeasibleError where one sample alone is over a rank's memory.
        """
        assert batch.lengths is not None, "check() refuses unknown lengths"
        cost = batch.cost
        assert cost.linear, "check() refuses costs that do not add up over samples"
        weights = cost.sample(batch.lengths)
        members, loads, bound = balance(weights, batch.world_size, batch.slowness)
        if batch.slowness is None:
            turn = batch.step % batch.world_size
            members, loads = members[turn:] + members[:turn], loads[turn:] + loads[:turn]
        if batch.caps is not None and len(set(batch.caps)) > 1:
            _mend(batch, members, loads, weights.tolist())
        sizes = _rows(batch, members)
        positions = np.array([position for own in members for position in own], dtype=np.int64)
        costs = [
            max(load + cost.fixed * len(rows), cost.least * len(rows)) for load, rows in zip(loads, sizes, strict=True)
        ]
        if batch.slowness is None:
            bound += cost.fixed
        else:
            costs = [slowed(own, rate) for own, rate in zip(costs, batch.slowness, strict=True)]
        status = "optimal" if max(costs) == bound else "feasible"
        return batch.assigned(
            positions,
            sizes,
            costs=tuple(costs),
            lower_bound=bound,
            status=status,
            method="longest first and swaps",
            packed=True,
        )


def _mend(batch: Batch, members: list[list[int]], loads: list[int], weights: list[int]) -> None:
    """Exchange each sample that its rank cannot hold for a lighter one of a rank that can.

    In place; it goes to the least laden such rank, and the heaviest sample that fits comes back.
    """
    assert batch.lengths is not None
    assert batch.caps is not None
    needs, rooms = batch.caps[0].weigh(batch.lengths).tolist(), [cap.room for cap in batch.caps]
    for rank, own in enumerate(members):
        for place in [place for place in own if needs[place] > rooms[rank]]:
            able = [other for other, room in enumerate(rooms) if needs[place] <= room]
            if not able:
                return  # _rows says so
            to = min(able, key=loads.__getitem__)
            back = max((p for p in members[to] if needs[p] <= rooms[rank]), key=weights.__getitem__, default=None)
            for giver, taker, moved in ((rank, to, place), (to, rank, back)):
                if moved is not None:
                    members[giver].remove(moved)
                    members[taker].append(moved)
                    loads[giver] -= weights[moved]
                    loads[taker] += weights[moved]


def _rows(batch: Batch, members: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Return how many samples each row of each rank holds: the next one that fits, in turn."""
    if batch.caps is None:
        return tuple((len(own),) if own else () for own in members)
    assert batch.lengths is not None
    sizes = []
    for own, cap in zip(members, batch.caps, strict=True):
        rows, room = [], 0
        needs = cap.weigh(batch.lengths[own]).tolist() if own else []
        for need in needs:
            if need > cap.room:
                raise InfeasibleError(
                    f"one sample of {batch.lengths[own].max()} tokens alone needs more memory than a rank may use; "
                    "raise memory.budget_bytes, or lower data.max_length"
                )
            if need > room:
                rows.append(0)
                room = cap.room
            rows[-1] += 1
            room -= need
        sizes.append(tuple(rows))
    return tuple(sizes)
