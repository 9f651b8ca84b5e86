"""The exchange of offers and votes over gloo, each on its separate process group, and the offsets of clocks.

Offers travel in the planning thread, votes in the training thread: two threads
must never interleave collectives on one group.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic, perf_counter, sleep

import torch
import torch.distributed as dist

from ddpsched.errors import RankFailure
from ddpsched.exchange import Messages
from ddpsched.training.meeting import store_of
from ddpsched.world import World

ROUNDS = 16  # of which the quickest bounds the error of a clock's offset


@dataclass(frozen=True)
class ClockOffset:
    """Seconds to add to a rank's ``perf_counter`` to get rank 0's, and the largest error that this may have."""

    rank: int
    offset_s: float
    uncertainty_s: float


class GroupExchange:
    """One rank's side of the exchange, over CPU groups also where gradients use NCCL.

    A collective fails after ``timeout_s`` seconds without an answer from some rank.
    """

    def __init__(self, world: World, timeout_s: float) -> None:
        self.ranks = (world.rank,)
        self._size, self._timeout_s = world.size, timeout_s
        timeout = timedelta(seconds=timeout_s)
        self._offers = dist.new_group(backend="gloo", timeout=timeout)
        self._votes = dist.new_group(backend="gloo", timeout=timeout)

    def offer(self, rows: Messages) -> Messages:
        """Return every rank's offer: (1, width) -> (world_size, width); called by the planning thread."""
        return self._gather(rows, self._offers)

    def vote(self, rows: Messages) -> Messages:
        """Return every rank's vote: (1, width) -> (world_size, width); called by the training thread."""
        return self._gather(rows, self._votes)

    def sum_batch(self, counts: Sequence[int]) -> "Sum":
        """Start adding up ``counts`` over ranks: the report's all-reduce of b_r, and of tokens and label tokens.

        Every rank gives as many counts; the sums are read when the step needs them.
        """
        tensor = torch.tensor(counts, dtype=torch.int64)
        return Sum(tensor, dist.all_reduce(tensor, group=self._votes, async_op=True))

    def total(self, value: float) -> float:
        """Return the sum of every rank's value."""
        tensor = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(tensor, group=self._votes)
        return float(tensor)

    def from_rank_0(self, value: float) -> float:
        """Return rank 0's value."""
        tensor = torch.tensor([value], dtype=torch.float64)
        dist.broadcast(tensor, src=0, group=self._votes)
        return float(tensor)

    def clock_offsets(self) -> list[ClockOffset]:
        r"""Return the offset of every rank's clock from rank 0's, the same list on all ranks.

        Rank r sends at t0 by its clock, rank 0 answers with its time T, and the answer
        arrives at t1. Had both ways taken equally long, T would be the middle, so

            offset = T - (t0 + t1) / 2          |error| <= (t1 - t0) / 2

        however long each way took (D. Mills, RFC 5905, section 8). The quickest of several
        rounds has the smallest bound. A time of rank r plus its offset is a time of rank 0.
        """
        message, rounds, group = torch.zeros(1, dtype=torch.float64), [(0.0, 0.0)], self._votes
        if self.ranks == (0,):
            for other in range(1, self._size):
                for _ in range(ROUNDS):
                    dist.recv(message, src=other, group=group)
                    message[0] = perf_counter()
                    dist.send(message, dst=other, group=group)
        else:
            rounds = [_round_trip(message, group) for _ in range(ROUNDS)]
        table = [torch.empty(2, dtype=torch.float64) for _ in range(self._size)]
        dist.all_gather(table, torch.tensor(min(rounds), dtype=torch.float64), group=group)
        return [ClockOffset(r, float(row[1]), float(row[0])) for r, row in enumerate(table)]

    def barrier(self) -> None:
        """Return when every rank has come here."""
        dist.barrier(group=self._votes)

    def part(self, is_done: Callable[[], bool]) -> None:
        """Wait for all ranks, but for those that are missing once the common work ``is_done``.

        After the group's time-out it waits on: rank 0 may still be writing. The watch of
        this process ends the wait if a rank dies.
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

    def _gather(self, rows: Messages, group: dist.ProcessGroup) -> Messages:
        table = [torch.empty(rows.shape[1], dtype=torch.int64) for _ in range(self._size)]
        dist.all_gather(table, torch.from_numpy(rows[0]), group=group)
        return torch.stack(table).numpy()


class Sum:
    """Sums over ranks that are under way."""

    def __init__(self, tensor: torch.Tensor, work: dist.Work) -> None:
        self._tensor, self._work = tensor, work

    def wait(self) -> list[int]:
        """Return the sums when they are there; may be called again."""
        self._work.wait()
        return self._tensor.tolist()


def _round_trip(message: torch.Tensor, group: dist.ProcessGroup) -> tuple[float, float]:
    """Return the uncertainty and the offset that one round trip to rank 0 shows, in seconds."""
    begin = perf_counter()
    dist.send(message, dst=0, group=group)
    dist.recv(message, src=0, group=group)
    end = perf_counter()
    return (end - begin) / 2, float(message) - (begin + end) / 2


def start_group(device: torch.device, world: World, timeout_s: float) -> None:
    """Join the ranks that the launcher started: NCCL for gradients on CUDA, gloo on a CPU.

    ``timeout_s``: seconds that a collective waits for a silent rank. Raises RankFailure,
    with the address, where the other ranks cannot be reached. After a restart by torchrun
    it joins the new attempt's ranks.
    """
    backend = "nccl" if device.type == "cuda" else "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        store, timeout = store_of(world, timeout_s), timedelta(seconds=timeout_s)
        dist.init_process_group(backend, store=store, timeout=timeout, rank=world.rank, world_size=world.size)
    except (RuntimeError, ValueError) as error:
        address = f"{os.environ.get('MASTER_ADDR', '(unset)')}:{os.environ.get('MASTER_PORT', '(unset)')}"
        in_use = "EADDRINUSE" in str(error) or "address already in use" in str(error)
        why = "this port is in use by another program" if in_use else str(error).splitlines()[0]
        raise RankFailure(
            f"rank {world.rank} of {world.size} could not reach the other ranks at {address}: {why}; start the ranks "
            "with torchrun --standalone, which finds a free port, or set MASTER_ADDR and MASTER_PORT to a free one"
        ) from None
