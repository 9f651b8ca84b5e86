"""online-dynamic-batching: ranks group what they have buffered by a token budget and agree on the number of groups.

Its collate loop runs once per rank, in threads; their all-gather is a table in memory instead of gloo.
"""

import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
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
    world = _ThreadWorld(torch, problem.world_size)
    emitted: list[list[Any]] = [[] for _ in range(problem.world_size)]
    failures: list[BaseException] = []

    def run(rank: int) -> None:
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
        except BaseException as error:
            failures.append(error)
            world.barrier.abort()
        while not leaving.empty():
            _, batch = leaving.get()
            if isinstance(batch, dict):  # else a slot without a group
                emitted[rank].append(batch["ids"])

    with ExitStack() as stack:
        for module in (collate, grouping):
            stack.enter_context(patch.object(module, "dist", world))
        stack.enter_context(_settings_kept(torch))
        with ThreadPoolExecutor(problem.world_size) as threads:
            list(threads.map(run, range(problem.world_size)))
    for error in failures:
        if not isinstance(error, BrokenBarrierError):
            raise PeerMissing(f"online-dynamic-batching failed ({type(error).__name__}: {error})") from error
    return dealt(emitted)


@contextmanager
def _settings_kept(torch: Any) -> Iterator[None]:
    """Restore torch's settings, which the collate loop changes for the whole process."""
    threads, strategy = torch.get_num_threads(), torch.multiprocessing.get_sharing_strategy()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.multiprocessing.set_sharing_strategy(strategy)


class _ThreadWorld:
    """The part of ``torch.distributed`` that the collate loop calls, with a thread per rank."""

    def __init__(self, torch: Any, size: int) -> None:
        self.barrier = Barrier(size)
        self.distributed_c10d = SimpleNamespace()
        self._torch, self._size, self._here = torch, size, local()
        self._table: list[Any] = [None] * size

    def enter(self, rank: int) -> None:
        self._here.rank = rank

    def is_initialized(self) -> bool:
        return True

    def new_group(self, **_: Any) -> "_ThreadWorld":
        return self

    def destroy_process_group(self, group: Any) -> None:
        pass

    def get_rank(self, group: Any = None) -> int:
        return self._here.rank

    def get_world_size(self, group: Any = None) -> int:
        return self._size

    def all_gather_into_tensor(self, output: Any, row: Any, group: Any = None) -> None:
        self._table[self.get_rank()] = row
        self.barrier.wait()
        output.copy_(self._torch.cat(self._table))
        self.barrier.wait()  # no rank writes its next row before all have read


PEERS = (budgeted("online_dynamic_batching", PACKAGE, _steps),)
