"""Whole micro-batches change places between ranks, as long as the costliest rank gets cheaper."""

from typing import TypeVar

from ddpsched.planning.solvers.partition.sorted_batch import Line, Span

T = TypeVar("T")

ROUNDS = 6  # more change nothing from B = 32 on
LIGHTEST = 2  # ranks to exchange with: of more, the gain is not worth the time


def exchange(line: Line, ranks: list[list[Span]], most: int) -> list[int]:
    """Give one micro-batch of the costliest rank to one of the lightest for one of its own, or for none, in place.

    Each round takes the pair after which the larger of the two costs is least; a rank keeps at most ``most``
    micro-batches. Returns the costs of all ranks.
    """
    costs = [[line.cost_of(a, b) for a, b in spans] for spans in ranks]
    loads = [sum(own) for own in costs]
    for _ in range(ROUNDS):
        by_load = sorted(range(len(loads)), key=loads.__getitem__)
        high = by_load[-1]
        least, best = loads[high], None
        for low in by_load[: min(LIGHTEST, len(by_load) - 1)]:
            gap, base = loads[high] - loads[low], loads[low]
            returns = list(enumerate(costs[low]))
            if len(ranks[low]) < most:
                returns.append((-1, 0))
            for x, given in enumerate(costs[high]):
                for y, back in returns:
                    moved = given - back
                    if 0 < moved < gap:
                        larger = max(loads[high] - moved, base + moved)
                        if larger < least:
                            least, best = larger, (low, x, y)
        if best is None:
            break
        low, x, y = best
        moved = costs[high][x] - (costs[low][y] if y >= 0 else 0)
        _move(ranks, high, low, x, y)
        _move(costs, high, low, x, y)
        loads[high] -= moved
        loads[low] += moved
    return loads


def _move(table: list[list[T]], high: int, low: int, x: int, y: int) -> None:
    given = table[high].pop(x)
    if y >= 0:
        table[high].append(table[low].pop(y))
    table[low].append(given)
