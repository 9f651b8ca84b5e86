r"""The offset of each rank's clock from rank 0's.

Rank r sends at t0 by its clock, rank 0 answers with its time T, and the answer
arrives at t1. Had both ways taken equally long, T would be the middle, so

    offset = T - (t0 + t1) / 2          |error| <= (t1 - t0) / 2

however long each way took (D. Mills, RFC 5905, section 8). The quickest of several
rounds has the smallest bound. A time of rank r plus its offset is a time of rank 0.
"""

from dataclasses import dataclass
from time import perf_counter

import torch
import torch.distributed as dist

ROUNDS = 16


@dataclass(frozen=True)
class ClockOffset:
    """Seconds to add to a rank's ``perf_counter`` to get rank 0's, and the largest error that this may have."""

    rank: int
    offset_s: float
    uncertainty_s: float


def clock_offsets(rank: int, size: int, group: dist.ProcessGroup) -> list[ClockOffset]:
    """Return one offset per rank, the same list on all; a collective over ``group``, a CPU group."""
    message, rounds = torch.zeros(1, dtype=torch.float64), [(0.0, 0.0)]
    if rank == 0:
        for other in range(1, size):
            for _ in range(ROUNDS):
                dist.recv(message, src=other, group=group)
                message[0] = perf_counter()
                dist.send(message, dst=other, group=group)
    else:
        rounds = [_round_trip(message, group) for _ in range(ROUNDS)]
    table = [torch.empty(2, dtype=torch.float64) for _ in range(size)]
    dist.all_gather(table, torch.tensor(min(rounds), dtype=torch.float64), group=group)
    return [ClockOffset(r, float(row[1]), float(row[0])) for r, row in enumerate(table)]


def _round_trip(message: torch.Tensor, group: dist.ProcessGroup) -> tuple[float, float]:
    """Return the uncertainty and the offset that one round trip to rank 0 shows, in seconds."""
    begin = perf_counter()
    dist.send(message, dst=0, group=group)
    dist.recv(message, src=0, group=group)
    end = perf_counter()
    return (end - begin) / 2, float(message) - (begin + end) / 2
