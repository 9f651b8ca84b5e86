"""verl's ``seqlen_balancing``: a global batch in parts of equal work, by the Karmarkar-Karp method; packed rows."""

from collections.abc import Iterator
from functools import partial

from ddpsched.peers.packages import need_alone
from ddpsched.peers.peer import Peer, Problem, Step

# Without its dependencies: they hold transformers below 5.11 and bring ray, of which the partition uses nothing.
PACKAGE = "--no-deps verl==0.9.1"


def _steps(problem: Problem, equal: bool = False) -> Iterator[Step]:
    """Yield steps of equal work as verl's trainers count it, 24576*L + L**2, without a last batch that is not whole."""
    module = need_alone(
        "verl.utils.seqlen_balancing",
        PACKAGE,
        without=("verl.protocol", "verl.utils.tensordict_utils", "verl.utils.device"),
    )

    def step(start: int) -> Step:
        batch = problem.order[start : start + problem.global_batch]
        work = module.calculate_workload(problem.lengths[batch]).tolist()
        return [[batch[g]] for g in module.get_seqlen_balanced_partitions(work, problem.world_size, equal)]

    return map(step, range(0, len(problem.order) - problem.global_batch + 1, problem.global_batch))


PEERS = (
    Peer("verl", PACKAGE, True, _steps),
    Peer("verl_equal", PACKAGE, True, partial(_steps, equal=True)),
)
