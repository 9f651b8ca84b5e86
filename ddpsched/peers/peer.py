"""The input and output of a peer: one problem, a stream of steps."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np

from ddpsched.costs.cost_model import CostModel, Int, padded_tokens
from ddpsched.step_plan import Ids, Microbatch

# Per rank a list of micro-batches, each int64 ids; a rank without samples has an empty list.
Step = list[list[Ids]]
# A step of a peer that splits samples: of each of its groups the micro-batches of each rank. Groups run in turn, with a
# barrier after each.
SplitStep = list[list[list[Microbatch]]]


@dataclass(frozen=True, eq=False)
class Problem:
    """One epoch to be cut into steps.

    ``lengths``: (N,), int64 tokens by id. ``order``: (N,), int64 ids, the epoch's global order, which a peer
    follows where it takes one; peers that draw batches themselves follow ``seed`` and ``epoch``. ``cost``: the model
    that steps are scored with. ``budget``: tokens per micro-batch, for a peer that takes a budget; None to search
    for it (see ``Peer.budget``). ``max_tokens``: the most tokens of one sample on a rank, for a peer that splits
    samples; None for the peer's default.
    """

    lengths: Int
    order: Ids
    world_size: int
    global_batch: int
    max_microbatches: int = 1
    seed: int = 0
    epoch: int = 0
    cost: CostModel = padded_tokens
    budget: int | None = None
    max_tokens: int | None = None

    @property
    def in_order(self) -> Int:
        """The lengths in the epoch's order, int64 (N,)."""
        return self.lengths[self.order]

    @property
    def longest(self) -> int:
        """The tokens of the longest sample."""
        return int(self.lengths.max())

    def ids(self, positions: list[int]) -> Ids:
        """Return the ids at positions of the order."""
        return self.order[np.asarray(positions, dtype=np.int64)]


@dataclass(frozen=True)
class Peer:
    """The batching of another package.

    ``package``: what to install, or that the algorithm is reimplemented here. ``packed``: a micro-batch is
    one row without padding. ``steps``: raises PeerMissing when it is called. ``budget``: for a peer whose
    batches are as large as a token budget allows, the tokens per micro-batch at which a step holds
    ``global_batch`` samples on average, over all ranks; None where the peer takes the batch size itself. ``splits``:
    its steps are SplitSteps, in which a sample may be in parts on several ranks; InfeasibleError where one is too long.
    """

    name: str
    package: str
    packed: bool
    steps: Callable[[Problem], Iterator[Any]]  # of Step, or SplitStep where it splits
    budget: Callable[[Problem], int] | None = None
    splits: bool = False

    def fitted(self, problem: Problem) -> Problem:
        """Return the problem with this peer's budget, so that later epochs need not search for it again."""
        if self.budget is None or problem.budget is not None:
            return problem
        return replace(problem, budget=self.budget(problem))


def dealt(ranks: Sequence[Iterable[Ids]]) -> Iterator[Step]:
    """Yield steps of one micro-batch of each rank; ranks that end early get none.

    >>> [len(rank) for step in dealt([[np.array([3, 1])], []]) for rank in step]
    [1, 0]
    """
    return ([[] if micro is None else [micro] for micro in step] for step in zip_longest(*ranks))
