"""The ranks' two messages over gloo, each on a process group of its own.

Offers travel in the planning thread, votes in the training thread: two threads
must never interleave collectives on one group.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from time import monotonic, sleep

import torch
import torch.distributed as dist

from ddpsched.exchange import Rows
from ddpsched.training.clock_offset import ClockOffset, clock_offsets
from ddpsched.world import World


class GroupExchange:
    """One rank's side. CPU groups, also where gradients travel by NCCL; silent ranks fail after ``timeout_s``."""

    def __init__(self, world: World, timeout_s: float) -> None:
        self.ranks = (world.rank,)
        self._size, self._timeout_s = world.size, timeout_s
        timeout = timedelta(seconds=timeout_s)
        self._offers = dist.new_group(backend="gloo", timeout=timeout)
        self._votes = dist.new_group(backend="gloo", timeout=timeout)

    def offer(self, rows: Rows) -> Rows:
        return self._gather(rows, self._offers)

    def vote(self, rows: Rows) -> Rows:
        return self._gather(rows, self._votes)

    def sum_batch(self, counts: Sequence[int]) -> "Sum":
        """Start adding up ``counts`` over ranks, as many on each: the report's all-reduce of b_r, and of tokens and
        label tokens, read when the step needs it.
        """
        tensor = torch.tensor(counts, dtype=torch.int64)
        return Sum(tensor, dist.all_reduce(tensor, group=self._votes, async_op=True))

    def total(self, value: float) -> float:
        tensor = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(tensor, group=self._votes)
        return float(tensor)

    def from_rank_0(self, value: float) -> float:
        """Rank 0's value."""
        tensor = torch.tensor([value], dtype=torch.float64)
        dist.broadcast(tensor, src=0, group=self._votes)
        return float(tensor)

    def clock_offsets(self) -> list[ClockOffset]:
        """Every rank's clock against rank 0's."""
        return clock_offsets(self.ranks[0], self._size, self._votes)

    def barrier(self) -> None:
        dist.barrier(group=self._votes)

    def part(self, is_done: Callable[[], bool]) -> None:
        """A barrier that a rank may miss once all ``is_done``; one that is late for it (rank 0, which may write for
        longer than the group's time-out) is waited for as long as it lives, which others see to.
        """
        begin = monotonic()
        try:
            self.barrier()
        except RuntimeError:
            timed_out = monotonic() - begin >= self._timeout_s
            while not is_done():
                if not timed_out:
                    raise
                sleep(0.2)

    def _gather(self, rows: Rows, group: dist.ProcessGroup) -> Rows:
        table = [torch.empty(rows.shape[1], dtype=torch.int64) for _ in range(self._size)]
        dist.all_gather(table, torch.from_numpy(rows[0]), group=group)
        return torch.stack(table).numpy()


class Sum:
    """A sum over ranks under way."""

    def __init__(self, tensor: torch.Tensor, work: dist.Work) -> None:
        self._tensor, self._work = tensor, work
        self._done = False

    def wait(self) -> list[int]:
        """The sums; however often it is asked."""
        if not self._done:
            self._work.wait()
            self._done = True
        return [int(value) for value in self._tensor]
