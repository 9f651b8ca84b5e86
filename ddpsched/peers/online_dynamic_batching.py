"""online-dynamic-batching: ranks group what they have buffered by a token budget and agree on the number of groups.

Its collate loop runs once per rank, in threads; their all-gather is a table in memory instead of gloo.
"""

import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Barrier, BrokenBarrierError, Event, local
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from ddpsched.errors import PeerMissing
from ddpsched.peers.budget import budgeted
from ddpsched.peers.packages import need
from ddpsched.peers.peer import Problem, Step, dealt

PACKAGE = "online-dynamic-batching==0.1.2"
BUFFER = 4 * 64  # samples a rank holds, workers * prefetch_factor of its README
BUFFER_BATCHES = 32  # where a rank's batches are large, as many of them as that buffer holds of 8 samples
SEED = 67108  # the package's seed of the first iterator; each later one counts up


def _steps(problem: Problem, budget: int) -> Iterator[Step]:
    """Yield steps in which rank r has every G-th sample of the order; ranks that end early get nothing (join mode)."""
    torch, collate = need("torch", "torch"), need("odb.collate", PACKAGE)
    grouping = need("odb.grouping", PACKAGE)
    rows = {length: [0] * length for length in np.unique(problem.lengths).tolist()}
    world = _thread_world(torch, problem.world_size)

    def run(rank: int) -> list[Any]:
        """Return the batches of one rank."""
        shard = problem.order[rank :: problem.world_size].tolist()
        arriving: queue.Queue[Any] = queue.Queue()
        for turn, id in enumerate(shard):
            arriving.put((turn, [{"input_ids": rows[int(problem.lengths[id])], "id": id}]))
        arriving.put((len(shard), None))
        leaving: queue.Queue[Any] = queue.Queue()
        try:
            world.enter(rank)
            collate.collate_loop_odb(
                arriving,
                leaving,
                collate_fn=lambda batch: {"ids": np.array([sample["id"] for sample in batch], dtype=np.int64)},
                buffer_size=max(BUFFER, BUFFER_BATCHES * problem.global_batch // problem.world_size),
                max_input_length=budget,
                done_event=Event(),
                random_seed=SEED + problem.epoch,
                join_mode=True,
                no_warmup=True,  # else it begins with windows of one sample, which is most of a short epoch
            )
        except BaseException:
            world.barrier.abort()
            raise
        batches = (batch for _, batch in leaving.queue)
        return [batch["ids"] for batch in batches if isinstance(batch, dict)]  # else a slot without a group

    with ExitStack() as stack:
        for module in (collate, grouping):
            stack.enter_context(patch.object(module, "dist", world))
        # the collate loop changes torch's settings for the whole process
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        stack.callback(torch.multiprocessing.set_sharing_strategy, torch.multiprocessing.get_sharing_strategy())
        threads = stack.enter_context(ThreadPoolExecutor(problem.world_size))
        ranks = [threads.submit(run, rank) for rank in range(problem.world_size)]
        for error in (rank.exception() for rank in ranks):
            if error is not None and not isinstance(error, BrokenBarrierError):
                raise PeerMissing(f"online-dynamic-batching failed ({type(error).__name__}: {error})") from error
    return dealt([rank.result() for rank in ranks])


def _thread_world(torch: Any, size: int) -> Any:
    """Return the part of ``torch.distributed`` that the collate loop calls, with a thread per rank.

    A thread calls ``enter(rank)`` first. ``barrier``: of all threads.
    """
    here, barrier, table = local(), Barrier(size), [None] * size

    def all_gather_into_tensor(output: Any, row: Any, group: Any = None) -> None:
        table[here.rank] = row
        barrier.wait()
        output.copy_(torch.cat(table))
        barrier.wait()  # no rank writes its next row before all have read

    world = SimpleNamespace(distributed_c10d=SimpleNamespace(), barrier=barrier)
    world.enter = lambda rank: setattr(here, "rank", rank)
    world.is_initialized = lambda: True
    world.new_group = lambda **options: world
    world.destroy_process_group = lambda group: None
    world.get_rank = lambda group=None: here.rank
    world.get_world_size = lambda group=None: size
    world.all_gather_into_tensor = all_gather_into_tensor
    return world


PEERS = (budgeted("online_dynamic_batching", PACKAGE, _steps),)
