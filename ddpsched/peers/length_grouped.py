"""transformers' ``group_by_length``: batches of similar length, dealt to ranks in turn."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from ddpsched.errors import PeerMissing
from ddpsched.peers.packages import need
from ddpsched.peers.peer import Peer, Problem, Step

PACKAGE = "transformers"


def _steps(problem: Problem, by_global_batch: bool = False) -> Iterator[Step]:
    """Yield steps of ``LengthGroupedSampler``, which shuffles and then sorts runs of 50 times its batch size.

    ``accelerate`` cuts its stream into batches of B/G and gives rank r of step k batch k*G + r; the last
    step is filled up with the epoch's first samples.
    """
    size, rest = divmod(problem.global_batch, problem.world_size)
    if rest:
        raise PeerMissing(
            f"group_by_length gives each rank B/G samples: {problem.world_size} ranks do not divide "
            f"global_batch = {problem.global_batch}"
        )
    torch = need("torch", "torch")
    sampler = need("transformers.trainer_pt_utils", PACKAGE).LengthGroupedSampler(
        problem.global_batch if by_global_batch else size,
        lengths=problem.lengths.tolist(),
        generator=torch.Generator().manual_seed(problem.seed + problem.epoch),
    )
    ids = np.fromiter(sampler, dtype=np.int64, count=len(problem.lengths))
    # steps: (num_steps, world_size, B/G)
    filled = np.resize(ids, -(-len(ids) // problem.global_batch) * problem.global_batch)
    steps = filled.reshape(-1, problem.world_size, size)
    return ([[micro] for micro in step] for step in steps)


PEERS = (
    # as Trainer sets it up, with one rank's B/G: with 50 ranks or more a step spans all lengths again
    Peer("length_grouped", PACKAGE, False, _steps),
    # with B, its best: a run of similar lengths is 50 steps long whatever the number of ranks
    Peer("length_grouped_global", PACKAGE, False, partial(_steps, by_global_batch=True)),
)
