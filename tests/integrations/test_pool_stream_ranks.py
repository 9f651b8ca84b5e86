"""PoolStream on two real ranks with data of unequal sizes: they end together, and the scale counts both."""

from collections.abc import Iterator

import numpy as np
from ranks import run_ranks

from ddpsched import PoolStream, World
from ddpsched.integrations.agree import sum_over_ranks
from ddpsched.local_ranks import join_group

SIZES = (40, 150)


class Lengths:
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __iter__(self) -> Iterator[int]:
        return iter(np.random.default_rng(self.rank).integers(1, 30, SIZES[self.rank]).tolist())


def read_to_the_end() -> list[tuple[list[int], float | None]]:
    """Return this rank's lengths and the scale of each step."""
    join_group()
    world = World.detect()
    policy = {"kind": "pool", "max_tokens_for_batch": 100, "batches_per_optimizer_step": 2}
    stream = PoolStream(Lengths(world.rank), int, world=world, policy=policy, infinite_loop=False, agree=sum_over_ranks)
    steps = []
    for batches in stream:
        assert stream.step is not None
        steps.append(([length for batch in batches for length in batch], stream.step.sum_scale))
    assert list(stream) != [], "and once more from the beginning"
    return steps


def test_ranks_end_together_and_weigh_all_samples_alike() -> None:
    ranks = run_ranks(read_to_the_end, 2)
    for rank, steps in enumerate(ranks):
        assert sorted(length for lengths, _ in steps for length in lengths) == sorted(Lengths(rank))
    assert len(ranks[0]) == len(ranks[1])
    dry = [not lengths for lengths, _ in ranks[0]]
    assert dry == sorted(dry), "empty lists are the last"
    assert sum(dry) > 3
    for (zero, scale), (one, same) in zip(*ranks, strict=True):
        assert scale == same == 2 / (len(zero) + len(one))


def test_alone_the_sum_is_the_number() -> None:
    assert sum_over_ranks(7) == 7
