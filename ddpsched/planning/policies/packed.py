"""packed: the same global batch as static, in rows without padding, the costliest rank cheapest."""

from typing import Literal

import numpy as np
from pydantic import model_validator

from ddpsched.costs.rank_speed import slowed
from ddpsched.planning.assignment import Assignment, refuse_too_long
from ddpsched.planning.policies.batch_policy import BatchPolicy
from ddpsched.planning.policies.lockstep import in_lockstep
from ddpsched.planning.solvers.partition.lpt import spread
from ddpsched.planning.steps.batches import GlobalBatch
from ddpsched.table import Positive


class Packed(BatchPolicy):
    """Put each rank's samples end to end in one row without padding, each attending to itself alone:

        minimise  max_r (fixed cost per micro-batch + sum of cost(length) over the samples of rank r)

    A row costs the sum over its samples, so any sample may go to any rank. A rank whose memory needs it runs several
    rows. Ranks that are alike take turns from step to step.

    With ``lockstep`` all ranks have as many rows, and run their m-th ones together, as ``sync.reshard`` needs it:

        minimise  sum_m max_r cost(row m of rank r)        with at most ``max_tokens`` in each row

    Options: ``lookahead``, W, global batches planned at once; 1 keeps each as the order drew it. ``lockstep``, and the
    ``max_tokens`` of its rows.
    Source: longest processing time first, R. L. Graham, 1969; see :func:`spread` and :func:`fill_levels`.
    """

    kind: Literal["packed"] = "packed"
    lookahead: Positive = 1
    """W, global batches planned at once; 1 keeps each as the order drew it."""
    lockstep: bool = False
    """All ranks have as many rows, and run them together."""
    max_tokens: Positive | None = None
    """lockstep: the most tokens of a row; None: one row a rank."""

    @model_validator(mode="after")
    def _belong_together(self) -> "Packed":
        if self.max_tokens is not None and not self.lockstep:
            raise ValueError("max_tokens is of the rows of lockstep = true; set that too, or give memory.path")
        return self

    @property
    def packs(self) -> bool:
        return True

    def assign(self, batch: GlobalBatch) -> Assignment:
        """Return one row a rank, or as many as its memory needs.

        Raises InfeasibleError where one sample alone is over a rank's memory.
        """
        assert batch.lengths is not None, "check() refuses unknown lengths"
        if self.lockstep:
            return in_lockstep(batch, self.max_tokens, None, packed=True)
        cost, slowness = batch.cost, batch.slowness
        assert cost.linear, "check() refuses costs that do not add up over samples"
        weights = cost.sample(batch.lengths)
        members, loads, bound = spread(weights, batch.world_size, slowness)
        if slowness is None:
            turn = batch.step % batch.world_size
            members, loads, bound = members[turn:] + members[:turn], loads[turn:] + loads[:turn], bound + cost.fixed
        if batch.caps is not None and len(set(batch.caps)) > 1:
            _mend(batch, members, loads, weights.tolist())
        sizes = _rows(batch, members)
        costs = [
            max(load + cost.fixed * len(rows), cost.least * len(rows)) for load, rows in zip(loads, sizes, strict=True)
        ]
        if slowness is not None:
            costs = [slowed(each, rate) for each, rate in zip(costs, slowness, strict=True)]
        positions = np.array([position for positions in members for position in positions], dtype=np.int64)
        chosen = Assignment(positions, sizes, tuple(costs), bound, method="longest first and swaps", packed=True)
        chosen.status = "optimal" if chosen.makespan == bound else "feasible"
        return batch.assigned(chosen)


def _mend(batch: GlobalBatch, members: list[list[int]], loads: list[int], weights: list[int]) -> None:
    """Exchange each sample that its rank cannot hold for a lighter one of a rank that can, in place.

    It goes to the least laden such rank, and the heaviest sample that fits comes back.
    """
    assert batch.lengths is not None
    assert batch.caps is not None
    needs, rooms = batch.caps[0].weigh(batch.lengths).tolist(), [cap.room for cap in batch.caps]
    for rank, positions in enumerate(members):
        for place in [place for place in positions if needs[place] > rooms[rank]]:
            able = [other for other, room in enumerate(rooms) if needs[place] <= room]
            if not able:
                return  # _rows raises
            to = min(able, key=loads.__getitem__)
            back = max((p for p in members[to] if needs[p] <= rooms[rank]), key=weights.__getitem__, default=None)
            for giver, taker, moved in ((rank, to, place), (to, rank, back)):
                if moved is not None:
                    members[giver].remove(moved)
                    members[taker].append(moved)
                    loads[giver] -= weights[moved]
                    loads[taker] += weights[moved]


def _rows(batch: GlobalBatch, members: list[list[int]]) -> tuple[tuple[int, ...], ...]:
    """Return how many samples each row of each rank holds: the next one that fits, in turn."""
    if batch.caps is None:
        return tuple((len(positions),) if positions else () for positions in members)
    assert batch.lengths is not None
    sizes = []
    for positions, cap in zip(members, batch.caps, strict=True):
        rows, room = list[int](), 0
        lengths = batch.lengths[np.array(positions, dtype=np.int64)]
        for need in cap.weigh(lengths).tolist():
            if need > cap.room:
                refuse_too_long(lengths.max())
            if need > room:
                rows.append(0)
                room = cap.room
            rows[-1] += 1
            room -= need
        sizes.append(tuple(rows))
    return tuple(sizes)
