r"""How far each rank's clock is from rank 0's.

Rank r asks at t0 by its own clock, rank 0 answers with its time T, the answer
arrives at t1. Had both ways taken equally long, T were the middle, so

    offset = T - (t0 + t1) / 2          |error| <= (t1 - t0) / 2

whatever the ways took (D. Mills, RFC 5905, section 8). The quickest of several
rounds has the smallest bound. What rank r stamps plus its offset is rank 0's time.
"""

from dataclasses import dataclass
from time import perf_counter

import torch
import torch.distributed as dist

ROUNDS = 16


@dataclass(frozen=True)
class ClockOffset:
    """Seconds to add to a rank's ``perf_counter`` to get rank 0's, and the most by which that may be wrong."""

    rank: int
    offset_s: float
    uncertainty_s: float


def clock_offsets(rank: int, size: int, group: dist.ProcessGroup) -> list[ClockOffset]:
    """One per rank, the same list on all; a collective over ``group``, a CPU group."""
    own = torch.zeros(2, dtype=torch.float64)
    for other in range(1, size):
        if rank == 0:
            _answer(other, group)
        elif rank == other:
            own = torch.tensor(_ask(group), dtype=torch.float64)
    table = [torch.empty(2, dtype=torch.float64) for _ in range(size)]
    dist.all_gather(table, own, group=group)
    return [ClockOffset(r, *row.tolist()) for r, row in enumerate(table)]


def _answer(other: int, group: dist.ProcessGroup) -> None:
    message = torch.zeros(1, dtype=torch.float64)
    for _ in range(ROUNDS):
        dist.recv(message, src=other, group=group)
        message[0] = perf_counter()
        dist.send(message, dst=other, group=group)


def _ask(group: dist.ProcessGroup) -> tuple[float, float]:
    message = torch.zeros(1, dtype=torch.float64)
    rounds = []
    for _ in range(ROUNDS):
        begin = perf_counter()
        dist.send(message, dst=0, group=group)
        dist.recv(message, src=0, group=group)
        end = perf_counter()
        rounds.append(((end - begin) / 2, float(message) - (begin + end) / 2))
    uncertainty, offset = min(rounds)
    return offset, uncertainty
