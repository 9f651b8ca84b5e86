"""transformers' ``batch_rebalance``: each global batch sorted and split by hill climbing on the groups' counts.

The sampler visits the samples in the order it is given, so its global batches are those of ``static``.
"""

from collections.abc import Iterator
from functools import cache, partial
from typing import Any

from ddpsched.peers.packages import need
from ddpsched.peers.peer import Peer, Problem, Step

PACKAGE = "transformers>=5.17"


def _steps(problem: Problem, scored: bool = False, accumulate: bool = False) -> Iterator[Step]:
    sampler = _all_ranks(need("transformers.trainer_pt_utils", PACKAGE).BatchRebalanceSampler)(
        lengths=problem.in_order.tolist(),
        effective_batch_size=problem.global_batch,
        dp_size=problem.world_size,
        grad_accum=problem.max_microbatches if accumulate else 1,
        shuffle=False,
        drop_last=False,
    )
    if scored:
        sampler._cost = cache(lambda count, longest: int(problem.cost.padded(count, longest)))
    return ([[problem.ids(micro) for micro in rank] for rank in ranks] for ranks in sampler)


def _all_ranks(base: Any) -> Any:
    """Return a sampler that yields the assignment of all ranks instead of one rank's part."""

    class AllRanks(base):
        def _yield_global_batch(self, batch_indices: list[int]) -> Iterator[list[list[list[int]]]]:
            yield self._assign(batch_indices, [self.lengths[i] for i in batch_indices])

    return AllRanks


PEERS = (
    # the package's cost: b*L + 0.001*b*L**2, whatever the model
    Peer("batch_rebalance", PACKAGE, False, _steps),
    # the cost that steps are scored with
    Peer("batch_rebalance_scored", PACKAGE, False, partial(_steps, scored=True)),
    # the package's cost, M micro-batches a rank
    Peer("batch_rebalance_accumulate", PACKAGE, False, partial(_steps, accumulate=True)),
)
