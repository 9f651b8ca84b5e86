"""One process or many: what measuring and sorting need from each other."""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from ddpsched.errors import DdpschedError, RankFailure
from ddpsched.orders.lexicographic_sort import sort_rows
from ddpsched.world import World

T = TypeVar("T")
Int = npt.NDArray[np.int64]
Columns = Sequence[npt.NDArray[Any]]
KEPT = "what was measured is kept, and the same command goes on from there"


class Ranks(Protocol):
    """All calls are collective."""

    world: World

    def together(self, do: Callable[[], T]) -> T:
        """What ``do`` gives here; where it raises on one rank, all stop: this one with its error, others naming it."""
        ...

    def total(self, own: Int) -> Int:
        """Added up over ranks, element by element, modulo 2**64."""
        ...

    def sort(self, rows: Columns) -> tuple[list[npt.NDArray[Any]], list[int]]:
        """This rank's slice of all rows, sorted; and how many rows each rank merged before slices were evened out."""
        ...

    def close(self) -> None: ...


class Alone:
    """One process, without torch."""

    def __init__(self) -> None:
        self.world = World()

    def together(self, do: Callable[[], T]) -> T:
        return do()

    def total(self, own: Int) -> Int:
        return own

    def sort(self, rows: Columns) -> tuple[list[npt.NDArray[Any]], list[int]]:
        return sort_rows(rows), [len(rows[0])]

    def close(self) -> None:
        """Nothing was opened."""


class Together:
    """This process is a rank under torchrun; gloo carries what ranks tell each other.

    Where a rank of this machine dies, or all are asked to stop, ``leave`` is called and the process ends.
    """

    TIMEOUT_S = 6 * 3600.0  # chunks differ, and who is ready first waits; a rank that dies is seen at once

    def __init__(self, world: World, leave: Callable[[], None]) -> None:
        import torch

        from ddpsched.processes import host_id
        from ddpsched.training.distributed import start_group
        from ddpsched.watch import Reports, start_watch

        self.world, self._leave, self._watch = world, leave, start_watch()
        if self._watch is not None:
            self._watch.report_to(Reports(lambda: self._end("asked to stop"), self._end))
        start_group(torch.device("cpu"), world, self.TIMEOUT_S)
        table = np.zeros((world.size, 2), dtype=np.int64)
        table[world.rank] = os.getpid(), host_id()
        table = self.total(table)
        if self._watch is not None:
            here = table[:, 1] == table[world.rank, 1]
            self._watch.know(np.where(here, table[:, 0], 0).tolist(), world.rank)

    def _end(self, reason: str) -> None:
        if self.world.is_main or reason.startswith("rank 0 "):
            print(f"error: {reason}; {KEPT}", file=sys.stderr, flush=True)
        self._leave()
        os._exit(1)

    def together(self, do: Callable[[], T]) -> T:
        error: BaseException | None = None
        result: Any = None
        try:
            result = do()
        except Exception as raised:
            error = raised
        failed = self.total(np.eye(self.world.size, dtype=np.int64)[self.world.rank] * (error is not None))
        if failed.any() and self._watch is not None:
            self._watch.leaving()
        if error is not None:
            raise error
        if failed.any():
            raise RankFailure(f"rank {int(failed.argmax())} failed, as its own message says; all ranks end")
        return result

    def total(self, own: Int) -> Int:
        import torch
        import torch.distributed as dist

        tensor = torch.from_numpy(own.copy())
        self._carried(lambda: dist.all_reduce(tensor))
        return tensor.numpy()

    def sort(self, rows: Columns) -> tuple[list[npt.NDArray[Any]], list[int]]:
        import torch

        from ddpsched.training.sample_sort import sample_sort

        held: list[int] = []
        found = self._carried(
            lambda: sample_sort([torch.from_numpy(column) for column in rows], seen=lambda sizes: held.extend(sizes))
        )
        return [column.numpy() for column in found], held

    def _carried(self, do: Callable[[], T]) -> T:
        """A collective; a broken one means that another rank is gone."""
        try:
            return do()
        except DdpschedError:
            raise
        except RuntimeError as error:
            raise RankFailure(f"rank {self.world.rank} lost the others; {KEPT}") from error

    def close(self) -> None:
        import torch.distributed as dist

        if self._watch is not None:
            self._watch.close()
        dist.destroy_process_group()
