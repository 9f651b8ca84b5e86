"""Ranks that fail in many ways: the one at fault is named, and none hangs."""

import json
import os
import signal
import time
from typing import Any

import pytest

from ddpsched.certify.certificate import Certificate, Check
from ddpsched.errors import ConfigError, RankFailure
from ddpsched.local_ranks import answers, at_fault, blame, free_port, join_group, post, run_ranks
from ddpsched.processes import Process, children

ALONE = "Connection closed by peer"  # gloo's message on the other ranks


def misbehave(how: str) -> Any:
    """Fail on rank 1. The others wait for it and raise, as in a collective."""
    rank = int(os.environ["RANK"])
    post(f"rank {rank} was here")
    print(f"printed by rank {rank}")
    if rank == 1:
        if how == "raises":
            raise ConfigError("rank 1 does not like this")
        if how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "crashes":
            os.abort()
        if how == "is suspended":
            os.kill(os.getpid(), signal.SIGSTOP)
        while how == "hangs":
            time.sleep(0.1)
    if how != "answers":
        time.sleep(0.3)
        raise RuntimeError(ALONE)
    return {"rank": rank, "world_size": os.environ["WORLD_SIZE"], "threads": os.environ["OMP_NUM_THREADS"]}


def test_answers_posts_and_prints(capfd: pytest.CaptureFixture[str]) -> None:
    outcomes = run_ranks(misbehave, 3, "answers")
    assert answers(outcomes) == [{"rank": rank, "world_size": "3", "threads": "1"} for rank in range(3)]
    assert [outcome.posts for outcome in outcomes] == [[f"rank {rank} was here"] for rank in range(3)]
    assert [outcome.log for outcome in outcomes] == [f"printed by rank {rank}\n" for rank in range(3)]
    assert capfd.readouterr().out == "", "what ranks print would spoil --json"


WAYS = {
    "raises": "rank 1 raised:",
    "dies": "rank 1 died without an answer (killed by SIGKILL)",
    "crashes": "rank 1 died without an answer (killed by SIGABRT)",
    "is suspended": "rank 1 was suspended and gave no answer",
    "hangs": "rank 1 gave no answer in time",
}


@pytest.mark.parametrize("how", WAYS)
def test_the_rank_at_fault_is_named_and_not_the_first_that_died(how: str) -> None:
    begin = time.monotonic()
    outcomes = run_ranks(misbehave, 3, how, timeout_s=2)
    assert time.monotonic() - begin < 20
    assert [outcome.rank for outcome in at_fault(outcomes)] == [1]
    assert outcomes[0].waited
    assert outcomes[2].waited
    assert outcomes[1].posts == ["rank 1 was here"]
    words = blame(outcomes)
    assert words.startswith(WAYS[how])
    assert words.endswith("waited in vain: rank 0, 2")
    if how == "raises":
        assert isinstance(outcomes[1].error, ConfigError)
        assert outcomes[1].brief == "raised ddpsched.errors.ConfigError: rank 1 does not like this"
    if how in ("crashes", "hangs"):
        assert "in misbehave" in words, "where it was"
    with pytest.raises(RankFailure, match="rank 1"):
        answers(outcomes)


def meet(skip: bool) -> float:
    import torch
    import torch.distributed as dist

    from ddpsched.certify.capture import counted

    join_group(timeout_s=3)
    total = torch.ones(1)
    with counted("first"):
        dist.all_reduce(total)
    with counted("second"):
        for _ in range(3):
            if not (skip and dist.get_rank() == 1 and total > 4):
                dist.all_reduce(total)
    return float(total)


def test_no_port_is_given_twice() -> None:
    ports = [free_port() for _ in range(500)]  # of 10,000: drawn independently, some would be equal
    assert len(set(ports)) == 500


def test_real_ranks_meet_and_a_missing_collective_is_seen_from_outside() -> None:
    from ddpsched.certify.capture import counts_of
    from ddpsched.certify.stream_checks import same_collectives

    outcomes = run_ranks(meet, 2, False)
    assert answers(outcomes) == [16.0, 16.0]
    assert same_collectives([counts_of(outcome.posts) for outcome in outcomes]).holds
    outcomes = run_ranks(meet, 2, True, timeout_s=4)
    waited = [outcome.rank for outcome in outcomes if outcome.waited]
    assert waited == [0]
    check = same_collectives([counts_of(outcome.posts) for outcome in outcomes], waited)
    assert check.says == "second: rank 1 did 2 collectives, rank 0 did 3"
    assert check.cause == "rank 1 is short of one; rank 0 waited in vain"


def test_a_certificate_in_words_and_as_json() -> None:
    good, bad = Check("one plan", True, "2 ranks [agree]"), Check("gradient", False, "error 0.3 > 1e-12", "no scale")
    certificate = Certificate("a [loop]", (good, bad), ("2 ranks",))
    assert not certificate.holds
    text = certificate.text()
    for words in ("a [loop]", "2 ranks [agree]", "FAILS", "likely cause: no scale", "verdict: does not hold: 1 of 2"):
        assert words in text
    assert json.loads(json.dumps(certificate.as_dict()))["checks"][1]["cause"] == "no scale"
    assert Certificate("all", (good,)).verdict == "holds: all 1 checks"
    assert not Certificate("nothing", ()).holds
    assert not Check.not_made("resumption", "why").holds


KEPT: list[Any] = []  # alive until the process ends


def work_that_goes_on() -> list[Process]:
    """Leave a data loader's worker behind; return what this rank has started."""
    from torch.utils.data import DataLoader

    KEPT.append(DataLoader([1, 2], num_workers=1, persistent_workers=True))
    assert len(list(KEPT[0])) == 2
    return [Process.of(pid) for pid in children(os.getpid())]


def test_nothing_that_a_rank_starts_outlives_it() -> None:
    (started,) = answers(run_ranks(work_that_goes_on, 1))
    deadline = time.monotonic() + 30  # a worker looks for its parent every 5 seconds
    while not all(each.is_gone for each in started) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert started
    assert all(each.is_gone for each in started)
