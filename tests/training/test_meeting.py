"""Ranks wait for a slow one as long as it shows signs of life, however short the time-out."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from ddpsched.errors import RankFailure
from ddpsched.training import meeting
from ddpsched.training.meeting import Meeting
from ddpsched.world import World


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "BEAT_S", 0.05)


def test_a_slow_rank_is_waited_for() -> None:
    store = dist.HashStore()
    ranks = [Meeting(store, World(rank, 3), timeout_s=0.4) for rank in range(3)]

    def arrive(rank: int) -> float:
        time.sleep(1.5 if rank == 2 else 0.0)  # tokenising
        ranks[rank].wait_for_all("read its data")
        ranks[rank].wait_for_all("built its model")
        return time.monotonic()

    with ThreadPoolExecutor(3) as pool:
        times = list(pool.map(arrive, range(3)))
    assert max(times) - min(times) < 0.4
    for each in ranks:
        each.close()


def test_a_rank_without_a_sign_of_life_is_named() -> None:
    store = dist.HashStore()
    first, third = (Meeting(store, World(rank, 3), timeout_s=0.4) for rank in (0, 2))
    third.close()  # as a suspended process: its number stays as it is
    begin = time.monotonic()
    with pytest.raises(RankFailure, match=r"rank 1 has not read its data, and shows no sign of life for 0.4 s"):
        first.wait_for_all("read its data")
    assert 0.4 < time.monotonic() - begin < 5
    first.close()


def test_signs_end_with_the_meeting() -> None:
    before = threading.active_count()
    Meeting(dist.HashStore(), World(0, 2), 1.0).close()
    assert threading.active_count() == before


def test_one_rank_alone_does_not_wait() -> None:
    with meeting.meeting(World(0, 1), 1.0):
        meeting.wait_for_all("read its data")
