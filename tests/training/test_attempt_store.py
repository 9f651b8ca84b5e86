"""Ranks that torchrun starts again find each other, and nothing of the attempt before."""

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from ddpsched.errors import RankFailure
from ddpsched.local_ranks import answers, run_ranks
from ddpsched.training.attempt_store import attempt_store
from ddpsched.training.group_exchange import GroupExchange, start_group
from ddpsched.world import World


def together(store: dist.Store, ranks: Sequence[int] = range(3), timeout_s: float = 10.0) -> list[str]:
    """Let ranks of three join at once; return the words that each reads from the attempt's store."""
    ready = threading.Barrier(len(ranks))

    def join(rank: int) -> str:
        ready.wait()
        try:
            mine = attempt_store(store, World(rank, 3), timeout_s)
        except RankFailure:
            ready.abort()  # the others have no one to wait for
            raise
        seen = [mine.get(f"address/{other}").decode() for other in range(3) if mine.check([f"address/{other}"])]
        ready.wait()
        mine.set(f"address/{rank}", "here")
        ready.wait()
        return " ".join([*seen, *(mine.get(f"address/{other}").decode() for other in ranks)])

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(join, ranks))


def test_ranks_of_one_attempt_share_a_store_and_read_nothing_of_earlier_ones() -> None:
    store = dist.HashStore()
    for _ in range(5):
        assert together(store) == ["here here here"] * 3


@pytest.mark.parametrize("died", [0, 1, 2])
def test_an_attempt_that_ended_half_way_leaves_nothing_that_confuses(died: int) -> None:
    """Whichever rank died before it had joined, and whatever the others had asked or answered by then."""
    store = dist.HashStore()
    with pytest.raises((RankFailure, threading.BrokenBarrierError)):
        together(store, [rank for rank in range(3) if rank != died], timeout_s=0.2)
    assert together(store) == ["here here here"] * 3


def test_ranks_that_are_missing_are_named() -> None:
    with pytest.raises(RankFailure, match=r"rank\(s\) 1, 2 of 3 did not join within 0 s; .*raise executor.timeout_s"):
        attempt_store(dist.HashStore(), World(0, 3), 0.05)
    with pytest.raises(RankFailure, match=r"rank 0 did not answer rank 2 within 0.05 s; .*raise executor.timeout_s"):
        attempt_store(dist.HashStore(), World(2, 3), 0.05)


@pytest.fixture
def agent_port() -> Iterator[int]:
    """The port of a store that outlives its ranks, as that of torchrun's agent does."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30))
    yield store.port
    del store


def join_and_die(port: int, dies: bool) -> float:
    """Join the group, and add one up over the ranks; rank 1 may die before that."""
    os.environ.update({"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"})
    world = World.detect()
    start_group(torch.device("cpu"), world, 5.0)
    exchange = GroupExchange(world, 5.0)
    if dies and world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return exchange.total(1.0)


def test_a_world_forms_again_on_the_same_store(agent_port: int) -> None:
    first = run_ranks(join_and_die, 2, agent_port, True, timeout_s=20)
    assert [each.ended for each in first] == ["raised", "died"]
    assert answers(run_ranks(join_and_die, 2, agent_port, False, timeout_s=20)) == [2.0, 2.0]
