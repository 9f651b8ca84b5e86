"""lhotse's ``DynamicBucketingSampler``: a random bucket each step, the same on all ranks, filled to a padded size."""

import warnings
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from ddpsched.peers.budget import budgeted
from ddpsched.peers.packages import need
from ddpsched.peers.peer import Problem, Step

PACKAGE = "lhotse==1.33.0 urllib3"  # imports urllib3 without requiring it


def _steps(problem: Problem, budget: int) -> Iterator[Step]:
    """Yield steps with its default settings (10 buckets, buffer of 20000), durations in tokens, shuffled in buckets."""
    lhotse, sampling = need("lhotse", PACKAGE), need("lhotse.dataset.sampling", PACKAGE)
    lengths = problem.lengths.tolist()
    cuts = lhotse.CutSet.from_cuts(
        lhotse.MonoCut(id=str(id), start=0, duration=float(lengths[id]), channel=0) for id in problem.order.tolist()
    )
    with warnings.catch_warnings():  # on cuts held in memory, and on small buffers
        warnings.simplefilter("ignore")
        sampler = _all_ranks(sampling.DynamicBucketingSampler)(
            cuts, max_duration=float(budget), shuffle=True, seed=problem.seed, world_size=problem.world_size, rank=0
        )
        sampler.set_epoch(problem.epoch)
        iter(sampler)
    return _every_rank(sampler, problem.world_size)


def _all_ranks(base: Any) -> Any:
    """Return a sampler that draws a step's batches as rank 0, and is given the same ones as any other rank."""

    class AllRanks(base):
        def _next_batch(self) -> Any:
            if self.rank == 0:
                try:
                    self.drawn.append(super()._next_batch())
                except StopIteration:
                    self.drawn.append(None)
                batch = self.drawn[-1]
            else:
                batch = self.drawn[0]
                self.drawn.rotate(-1)
            if batch is None:
                raise StopIteration
            return batch

    return AllRanks


def _every_rank(sampler: Any, world_size: int) -> Iterator[Step]:
    while True:
        step: Step = []
        for rank in range(world_size):
            sampler.rank = rank
            if rank == 0:
                sampler.drawn = deque()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                batch = next(sampler, None)
            if batch is None:
                return
            # at the end of an epoch samples may be repeated, as "12_dup0"
            step.append([np.array([int(cut.id.partition("_")[0]) for cut in batch], dtype=np.int64)])
        yield step


PEERS = (budgeted("lhotse", PACKAGE, _steps),)
