"""Placements of a few samples on ranks by brute force, and a check of a placement's claims."""

from collections.abc import Iterator
from itertools import product

from ddpsched.costs.cost_model import CostModel, Int
from ddpsched.planning.assignment import Assignment

TOKENS = CostModel(0, 1, 0, scale=1)
COSTS = {
    "tokens": TOKENS,
    "alpha": CostModel(7, 1, 0, scale=1),
    "attention": CostModel(3, 1, 0.5, scale=1),
    "launches": CostModel(0.010, 0, 0, delta=0.001),  # lengths cost no time, but need memory
    "floor": CostModel(2, 1, 0, scale=1, floor=15),
}


def partitions(size: int, groups: int) -> Iterator[list[list[int]]]:
    """Yield every way to cut ``size`` things into at most ``groups`` unnamed groups."""

    def grow(place: int, held: list[list[int]]) -> Iterator[list[list[int]]]:
        if place == size:
            yield [list(group) for group in held]
            return
        for group in held:
            group.append(place)
            yield from grow(place + 1, held)
            group.pop()
        if len(held) < groups:
            held.append([place])
            yield from grow(place + 1, held)
            held.pop()

    yield from grow(0, [])


def best_of_all(
    lengths: Int,
    ranks: int,
    most: int,
    cost: CostModel,
    slowness: list[int],
    rooms: list[int] | None = None,
) -> int | None:
    """Return the least makespan over all partitions into micro-batches and their ranks; None where none fits.

    ``rooms[r]``: the most padded tokens in a micro-batch of rank r.
    """
    best = None
    for groups in partitions(len(lengths), ranks * most):
        sizes = [len(group) * int(lengths[group].max()) for group in groups]
        costs = [int(cost.padded(len(group), lengths[group].max())) for group in groups]
        for owners in product(range(ranks), repeat=len(groups)):
            if max(owners.count(rank) for rank in range(ranks)) > most:
                continue
            if rooms is not None and any(size > rooms[owner] for size, owner in zip(sizes, owners, strict=True)):
                continue
            loads = [
                -(-sum(c for c, o in zip(costs, owners, strict=True) if o == r) * slowness[r] // 10**6)
                for r in range(ranks)
            ]
            best = max(loads) if best is None else min(best, max(loads))
    return best


def check(found: Assignment, lengths: Int, most: int, cost: CostModel, slowness: list[int]) -> None:
    """Check that a placement holds each sample once and at most M micro-batches, and has the model's costs."""
    assert sorted(found.positions.tolist()) == list(range(len(lengths)))
    assert max(map(len, found.sizes)) <= most
    start, costs = 0, []
    for sizes in found.sizes:
        total = 0
        for size in sizes:
            assert size > 0
            total += int(cost.padded(size, lengths[found.positions[start : start + size]].max()))
            start += size
        costs.append(total)
    assert start == len(lengths)
    assert list(found.costs) == [-(-c * rate // 10**6) for c, rate in zip(costs, slowness, strict=True)]
