"""The collective operations of measuring and sorting, for one process or many."""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ddpsched.errors import DdpschedError, RankFailure
from ddpsched.local_ranks import leave_group
from ddpsched.orders.lexicographic_sort import sort_rows
from ddpsched.world import World

T = TypeVar("T")
Int = npt.NDArray[np.int64]
Columns = Sequence[npt.NDArray[Any]]
KEPT = "measured parts are kept, and the same command continues from them"


class Ranks:
    """The one rank of a process without torch. All calls but ``close`` are collective where there are several."""

    def __init__(self, world: World | None = None) -> None:
        self.world = World() if world is None else world

    def together(self, do: Callable[[], T]) -> T:
        """Return this rank's result of ``do``. Where it raises on one rank, all stop, the others with RankFailure."""
        return do()

    def total(self, values: Int) -> Int:
        """Return the sum over ranks, element by element, modulo 2**64."""
        return values

    def by_rank(self, value: int) -> Int:
        """Return the values of all ranks, (world size,)."""
        return self.total(np.eye(self.world.size, dtype=np.int64)[self.world.rank] * value)

    def sort(self, rows: Columns) -> tuple[list[npt.NDArray[Any]], list[int]]:
        """Return this rank's slice of all rows, sorted; and the rows that each rank merged, before evening out."""
        return sort_rows(rows), [len(rows[0])]

    def close(self) -> None:
        """End the process group and the watch, if there are any."""


class LaunchedRanks(Ranks):
    """A rank under torchrun, with collectives by gloo.

    Where a rank of this machine dies, or all are asked to stop, ``leave`` is called and the process ends.
    """

    TIMEOUT_S = 6 * 3600.0  # chunks differ, and the first to finish waits; a rank that dies is noticed at once

    def __init__(self, world: World, leave: Callable[[], None]) -> None:
        import torch

        from ddpsched.processes import host_id
        from ddpsched.training.group_exchange import start_group
        from ddpsched.watch import start_watch

        super().__init__(world)
        self._leave, self._watch = leave, start_watch()
        if self._watch is not None:
            self._watch.report_to(lambda: self._end("a signal asked this rank to stop"), self._end)
        start_group(torch.device("cpu"), world, self.TIMEOUT_S)
        pids, hosts = self.by_rank(os.getpid()), self.by_rank(host_id())
        if self._watch is not None:
            self._watch.add_peers(np.where(hosts == hosts[world.rank], pids, 0).tolist(), world.rank)

    def _end(self, reason: str) -> None:
        if self.world.is_main or reason.startswith("rank 0 "):
            print(f"error: {reason}; {KEPT}", file=sys.stderr, flush=True)
        self._leave()
        os._exit(1)

    def together(self, do: Callable[[], T]) -> T:
        error: Exception | None = None
        result: Any = None
        try:
            result = do()
        except Exception as raised:
            error = raised
        failed = self.by_rank(error is not None)
        if failed.any():
            if self._watch is not None:
                self._watch.hold_reports()
            raise error or RankFailure(f"rank {int(failed.argmax())} failed; its error says why; all ranks end")
        return result

    def total(self, values: Int) -> Int:
        import torch
        import torch.distributed as dist

        tensor = torch.from_numpy(values.copy())
        self._collective(lambda: dist.all_reduce(tensor))
        return tensor.numpy()

    def sort(self, rows: Columns) -> tuple[list[npt.NDArray[Any]], list[int]]:
        import torch

        from ddpsched.training.sample_sort import sample_sort

        merged: list[int] = []  # rows of each rank
        tensors = [torch.from_numpy(column) for column in rows]
        columns = self._collective(lambda: sample_sort(tensors, seen=merged.extend))
        return [column.numpy() for column in columns], merged

    def _collective(self, do: Callable[[], T]) -> T:
        """Return the result of a collective; raise RankFailure where it breaks because another rank has ended."""
        try:
            return do()
        except DdpschedError:
            raise
        except RuntimeError as error:
            raise RankFailure(f"rank {self.world.rank} lost its connection to the others; {KEPT}") from error

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        leave_group()
