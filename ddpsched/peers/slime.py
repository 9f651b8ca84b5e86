"""slime's dynamic batches: ranks of equal counts by largest differencing, each again in as many rows; packed rows.

Reimplemented after its data module, which needs ray and Megatron: the rows that first fit in order needs are counted on
each rank, the most of them is every rank's number, and a rank's samples are divided into so many by largest
differencing. A row may then be above the cap, which nothing checks again. Nothing is dropped.
"""

from collections.abc import Iterator, Sequence

from ddpsched.peers.karmarkar_karp import largest_differencing
from ddpsched.peers.peer import Peer, Problem, Step
from ddpsched.peers.rows import row_tokens

PACKAGE = "ddpsched's reimplementation"


def ranks_rows(lengths: Sequence[int], ranks: int, tokens: int) -> list[list[list[int]]]:
    """Return each rank's rows, as positions."""
    members = largest_differencing(list(lengths), ranks, equal=True)
    count = max(1, *(_first_fit([lengths[i] for i in each], tokens) for each in members))
    found = []
    for each in members:
        rows = largest_differencing([lengths[i] for i in each], count) if each else []
        found.append([[each[place] for place in row] for row in rows if row])
    return found


def _first_fit(lengths: Sequence[int], tokens: int) -> int:
    """Return how many rows first fit, in order, opens."""
    rooms: list[int] = []
    for length in lengths:
        row = next((row for row, room in enumerate(rooms) if room >= length), len(rooms))
        if row == len(rooms):
            rooms.append(tokens)
        rooms[row] -= length
    return len(rooms)


def _steps(problem: Problem) -> Iterator[Step]:
    tokens = row_tokens(problem)
    for start in range(0, len(problem.order), problem.global_batch):
        lengths = problem.in_order[start : start + problem.global_batch].tolist()
        ranks = ranks_rows(lengths, problem.world_size, tokens)
        yield [[problem.ids([start + position for position in row]) for row in rank] for rank in ranks]


PEERS = (Peer("slime", PACKAGE, True, _steps),)
