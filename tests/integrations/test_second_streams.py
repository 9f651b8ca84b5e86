"""A second stream or loader in a process whose arguments differ between ranks is refused, as the first one is."""

import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from itertools import islice
from typing import Any

import torch.distributed as dist
from ranks import run_ranks

from ddpsched import BatchSampler, PlanMismatch, PoolStream, StreamScheduler
from ddpsched.integrations import agreement
from ddpsched.integrations.agree import sum_over_ranks
from ddpsched.local_ranks import join_group


def second_ones() -> dict[str, str]:
    """Return the error of this rank in each case where the second one differs on rank 1, which begins later."""
    join_group()
    agreement.timeout_of = lambda c10d: timedelta(seconds=5)
    rank = dist.get_rank()
    texts = ["x" * (1 + (number + rank) % 9) for number in range(40)]

    def pool(tokens: int) -> PoolStream:
        policy = {"kind": "pool", "max_tokens_for_batch": tokens}
        return PoolStream(texts, len, policy=policy, infinite_loop=False, agree=sum_over_ranks)

    def broken_off(size: int) -> Iterable[Any]:
        return islice(BatchSampler(range(1, 65), global_batch=size), 3)

    cases: dict[str, Callable[[int], Iterable[Any]]] = {
        "stream": lambda size: StreamScheduler(texts, len, global_batch=size),
        "pool": pool,
        "broken off": broken_off,
    }
    found = {}
    for name, made in cases.items():
        list(made(16))
        dist.barrier()
        time.sleep(0.2 * rank)
        try:
            list(made(16 + 4 * rank))
            found[name] = "nothing"
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
        dist.barrier()
    return found


def test_ranks_that_differ_in_the_second_one_stop() -> None:
    zero, one = run_ranks(second_ones, 2)
    # rank 1 may still be in a loop that was broken off as rank 0 begins the next, so only rank 1 is sure to see it
    for error in (*one.values(), zero["stream"], zero["pool"]):
        assert error.startswith(PlanMismatch.__name__), (zero, one)
