"""split: the same global batch as static, long samples split over groups of ranks, the others packed around them."""

from typing import Literal

import numpy as np

from ddpsched.errors import InfeasibleError
from ddpsched.parts import Part, finish_times, head_and_tail
from ddpsched.planning.assignment import Assignment
from ddpsched.planning.policies.batch_policy import BatchPolicy
from ddpsched.planning.policy import Setting
from ddpsched.planning.solvers.partition.gangs import Item, Row, Share, degrees, place
from ddpsched.planning.steps.batches import GlobalBatch
from ddpsched.table import Positive


class Split(BatchPolicy):
    """Cut samples that are more than a rank's share, or over its tokens, into parts on several ranks at a time:

        minimise  max_r (when rank r is done, waiting for the ranks of its parts counted)

    Each part of a sample attends to the whole of it, as in context parallelism, which here is of single samples; all
    others stay whole, packed without padding. Parts of a sample cost alike, as each has as many tokens and, where
    attention is causal, as many pairs. Ranks have the same samples together as in static, each weighing 1/B, so the
    gradient is static's.

    Options: ``max_tokens``, the most tokens of a rank's micro-batch; a longer sample is split. None: samples are split
    where one costs more than an even share alone.
    Source: greedy gangs, then longest processing time first into what they leave; see :func:`place`.
    """

    kind: Literal["split"] = "split"
    max_tokens: Positive | None = None
    """The most tokens of a rank's micro-batch; a longer sample is split over ranks."""

    @property
    def packs(self) -> bool:
        return True

    @property
    def splits(self) -> bool:
        return True

    def check(self, setting: Setting) -> None:
        super().check(setting)
        if setting.memory != "none":
            raise ValueError("policy.kind = 'split' keeps to policy.max_tokens; give that in place of [memory]")
        if setting.refined_cost:
            raise ValueError(
                "policy.kind = 'split' plans for ranks that are alike; leave cost.online out, or use packed"
            )

    def check_longest(self, tokens: int, world_size: int) -> None:
        if self.max_tokens is not None and tokens > world_size * self.max_tokens:
            raise InfeasibleError(
                f"a sample of {tokens} tokens is over policy.max_tokens = {self.max_tokens} on all {world_size} ranks "
                f"together; raise it to at least {-(-tokens // world_size)}, lower data.max_length, or use more ranks"
            )

    def assign(self, batch: GlobalBatch) -> Assignment:
        """Return parts and rows of each rank."""
        assert batch.lengths is not None, "check() refuses unknown lengths"
        cost, size, lengths = batch.cost, batch.world_size, batch.lengths
        weights = cost.sample(lengths)
        degree = np.minimum(degrees(lengths, weights, size, self.max_tokens), lengths)  # a token for each part
        ranks = place(lengths, weights, degree, size, self.max_tokens, cost.fixed)
        split = np.flatnonzero(degree > 1).tolist()
        cuts = {position: head_and_tail(int(lengths[position]), int(degree[position])) for position in split}
        priced = [[_priced(item, weights, batch) for item in rank] for rank in ranks]
        costs = finish_times(priced)
        bound = -(-int(weights.sum()) // size) + cost.fixed
        positions = [position for rank in ranks for item in rank for position in _positions(item)]
        chosen = Assignment(
            np.array(positions, dtype=np.int64), tuple(tuple(len(_positions(item)) for item in rank) for rank in ranks),
            tuple(costs), max(bound, cost.least), method="gangs and longest first", packed=True,
            parts=tuple(tuple(_part(item, cuts) for item in rank) for rank in ranks) if cuts else None,
        )  # fmt: skip
        chosen.status = "optimal" if chosen.makespan == chosen.lower_bound else "feasible"
        return batch.assigned(chosen)


def _positions(item: Item) -> list[int]:
    return item.members if isinstance(item, Row) else [item.position]


def _part(item: Item, cuts: dict[int, tuple[Part, ...]]) -> Part | None:
    return cuts[item.position][item.index] if isinstance(item, Share) else None


def _priced(item: Item, weights: np.ndarray, batch: GlobalBatch) -> tuple[int, int | None]:
    cost = batch.cost
    if isinstance(item, Row):
        return max(cost.least, cost.fixed + int(weights[item.members].sum())), None
    return max(cost.least, cost.fixed - (-int(weights[item.position]) // item.degree)), item.position
