"""cosmos-rl's ``LoadBalancedDataset``: each rank fills a padded size from a pool of its shard."""

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np

from ddpsched.peers.budget import budgeted
from ddpsched.peers.packages import need_alone
from ddpsched.peers.peer import Problem, Step, dealt
from ddpsched.step_plan import Ids

# Without its dependencies: they hold transformers below 5 and bring CUDA, of which the dataset uses nothing.
PACKAGE = "--no-deps cosmos-rl==0.4.7"
POOL = 32  # its default
POOL_BATCHES = 4  # a pool no larger than a batch leaves nothing to choose from


def _steps(problem: Problem, budget: int) -> Iterator[Step]:
    """Yield steps of the closest lengths first, its default, in one pass; ranks that end early get nothing."""
    module = need_alone("cosmos_rl.dispatcher.data.load_balanced_dataset", PACKAGE)
    logging.getLogger("cosmos").setLevel(logging.WARNING)
    samples = [{"input_ids": range(length), "id": id} for id, length in enumerate(problem.lengths.tolist())]
    return dealt([_rank(module, samples, rank, problem, budget) for rank in range(problem.world_size)])


def _rank(module: Any, samples: list[dict[str, Any]], rank: int, problem: Problem, budget: int) -> Iterator[Ids]:
    dataset = module.LoadBalancedDataset(
        samples,
        pool_size=max(POOL, POOL_BATCHES * problem.global_batch // problem.world_size),
        max_tokens_for_batch=budget,
        seed=problem.seed,
        dp_rank=rank,
        dp_world_size=problem.world_size,
        infinite_loop=False,
    )
    dataset.set_epoch(problem.epoch)
    for (batch,) in dataset:
        yield np.array([sample["id"] for sample in batch], dtype=np.int64)


PEERS = (budgeted("cosmos_rl", PACKAGE, _steps),)
