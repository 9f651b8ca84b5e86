"""Megatron-LM's hybrid context parallelism: static's samples in groups, long ones over several ranks.

Megatron runs the groups of a step in turn, all ranks meeting at a barrier after each. A sample that is over a rank's
tokens goes to the least power of two of ranks that hold it. In a group a rank belongs to one set of ranks, and all of a
set have the same samples in the same order, each in a forward and backward pass of its own; so a rank waits only for
the slowest set of its group. Megatron balances squared lengths over ranks, whatever cost is scored.
"""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from ddpsched.errors import InfeasibleError
from ddpsched.parts import head_and_tail
from ddpsched.peers.packages import need_alone
from ddpsched.peers.peer import Peer, Problem, SplitStep
from ddpsched.step_plan import Ids, Microbatch

PACKAGE = "megatron-core==0.16.1"


class _Ranks:
    """A stand-in for a process group, of which the scheduler asks only the size."""

    def __init__(self, count: int) -> None:
        self._count = count

    def size(self) -> int:
        return self._count


def _steps(problem: Problem) -> Iterator[SplitStep]:
    """Yield steps of at most ``max_tokens`` of a sample on a rank, the rest with the scheduler's own settings.

    Raises InfeasibleError where a sample does not fit on a power of two of ranks.
    """
    module = need_alone(
        "megatron.core.pipeline_parallel.hybrid_cp_schedule",
        PACKAGE,
        without=("megatron.core.parallel_state", "megatron.core.rerun_state_machine"),
    )
    tokens = problem.max_tokens or starting_point(problem)
    if problem.longest > (most := _largest_power(problem.world_size) * tokens):
        raise InfeasibleError(
            f"megatron splits a sample over a power of two of ranks, so {problem.world_size} ranks of {tokens} tokens "
            f"hold one of {most}, and the longest has {problem.longest}; give --max-tokens {starting_point(problem)} "
            "or more, or shorter samples"
        )
    scheduler = module.BalancedCPScheduler(tokens, _Ranks(problem.world_size))

    def step(start: int) -> SplitStep:
        batch = problem.order[start : start + problem.global_batch]
        lengths = dict(zip(batch.tolist(), problem.lengths[batch].tolist(), strict=True))
        _, groups = scheduler.get_groups_and_subsamples(list(lengths.items()), None)
        return [_microbatches(group, lengths) for group in groups]

    return map(step, range(0, len(problem.order), problem.global_batch))


def starting_point(problem: Problem) -> int:
    """Return the tokens of a rank that Megatron's documentation begins with: the longest sample over all ranks.

    Over the largest power of two of them, as other numbers would not hold it.
    """
    return -(-problem.longest // _largest_power(problem.world_size))


def _largest_power(world_size: int) -> int:
    return 1 << (world_size.bit_length() - 1)


def _microbatches(group: list[list[int]], lengths: dict[int, int]) -> list[list[Microbatch]]:
    """Return the micro-batches of each rank, of the sample ids that Megatron gives each: a sample of several is split.

    A sample of fewer tokens than its ranks is padded by Megatron; here the ranks that would have only padding run none.
    """
    ranks_of = Counter(id for rank in group for id in rank)
    cuts = {id: iter(head_and_tail(lengths[id], min(n, lengths[id]))) for id, n in ranks_of.items() if n > 1}

    def of_rank(ids: list[int]) -> Iterator[Microbatch]:
        for id in ids:
            if id not in cuts:
                yield Microbatch(_one(id), packed=True)
            elif (part := next(cuts[id], None)) is not None:
                yield Microbatch(_one(id), packed=True, part=part)

    return [list(of_rank(rank)) for rank in group]


def _one(id: int) -> Ids:
    return np.array([id], dtype=np.int64)


PEERS = (Peer("megatron", PACKAGE, True, _steps, splits=True),)
