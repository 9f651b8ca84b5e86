"""Ranks agree on one plan before they train, with any launcher and any arguments."""

import os
import pickle
import re
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from ranks import run_ranks
from torch.utils.data import DataLoader

from ddpsched import BatchSampler, PoolStream, StepLoader, StreamScheduler, World, scaled
from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.errors import ConfigError, PlanMismatch, RankFailure
from ddpsched.integrations import agreement
from ddpsched.local_ranks import join_group

LENGTHS = sst2_lengths(70, np.random.default_rng(0))


def forget_launcher() -> int:
    """Return this process's rank, and remove it from the environment."""
    join_group()
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        del os.environ[name]
    return dist.get_rank()


def raised(work: Callable[[], Any]) -> tuple[str, str]:
    try:
        work()
    except Exception as error:
        result = type(error).__name__, str(error)
    else:
        result = "nothing", ""
    return result


def sampler(**changes: Any) -> BatchSampler:
    return BatchSampler(**{"lengths": LENGTHS, "global_batch": 16, **changes})


def at_epoch(epoch: int) -> BatchSampler:
    made = sampler()
    made.set_epoch(epoch)
    return made


def disagreements() -> dict[str, tuple[str, str]]:
    """Return the error of each rank in each case where one thing differs."""
    rank = forget_launcher()
    agreement.timeout_of = lambda c10d: timedelta(seconds=20)
    policy = {"kind": "token_budget", "max_tokens_for_batch": 60 + rank}
    seconds = {"kind": "affine_quadratic", "alpha": 1.0, "beta": 0.1 * rank}  # as of two calibrations
    work = {
        "rank": (lambda: list(sampler(world=World(0, 2), seed=10))),
        "size": (lambda: list(sampler(world=World(rank, 2 + rank), seed=11))),
        "seed": (lambda: list(sampler(seed=rank))),
        "data": (lambda: list(sampler(lengths=LENGTHS[::-1] if rank else LENGTHS))),
        "policy": (lambda: list(sampler(policy="static" if rank else "balanced"))),
        "device": (lambda: list(sampler(policy="auto", cost=seconds))),
        "order": (lambda: list(sampler(order="sequential" if rank else "shuffled"))),
        "batch": (lambda: list(sampler(global_batch=16 + rank))),
        "last": (lambda: list(sampler(last="join" if rank else "drop"))),
        "loader": (lambda: list(StepLoader(range(70), LENGTHS, policy=policy, collate_fn=list))),
        "stream": (lambda: next(iter(PoolStream(range(1, 70), int, policy={"kind": "pool", "pool_size": 4 + rank})))),
        "kind": (lambda: list(StepLoader(range(70), LENGTHS, global_batch=16) if rank else sampler())),
        "epoch": (lambda: list(at_epoch(3 * rank))),
        "steps": (lambda: list(StepLoader(range(70), LENGTHS, global_batch=16, max_num_steps=3 + rank))),
        "count": (lambda: list(scaled(sampler(), len if rank else None))),
        "stream's count": (
            lambda: list(scaled(StreamScheduler(["a"] * 9, len, global_batch=4), len if rank else None))
        ),
        "none": (lambda: list(scaled(sampler()))),
    }
    raised_by = {}
    for name, each in work.items():
        raised_by[name] = raised(each)
        dist.barrier()
    return raised_by


def test_ranks_that_would_follow_different_plans_all_stop() -> None:
    zero, one = run_ranks(disagreements, 2)
    for name, words in {
        "rank": r"processes \[0, 1\] of the group are all rank 0 of 2.*no process is rank 1",
        "size": "on process 1 world_size = 3, on this one 2",
        "seed": "seed = 1, on this one 0", "data": r"on process 1 data \(the digest of its lengths\) = '",
        "policy": "policy.kind = 'static', on this",
        "device": "policy.kind = 'balanced', on this one 'static'; cost.beta = 0.1, on this one 0.0",
        "order": "order.kind = 'sequential', on this one 'shuffled'", "batch": "global_batch = 17, on this one 16",
        "last": "last = 'join', on this one 'drop'", "loader": "policy.max_tokens_for_batch = 61, on this one 60",
        "stream": "pool_size = 5, on this one 4", "kind": "loader = 'StepLoader', on this one 'BatchSampler'",
        "count": "count = 'a function', on this one the default",
        "stream's count": "count = 'a function', on this one the default",
        "epoch": "epoch = 3, on this one 0", "steps": "max_num_steps = 4, on this one 3",
    }.items():  # fmt: skip
        assert name != "size" or "rank 1 of 3, but the process group has 2 processes" in one[name][1]
        for kind, text in (zero[name], one[name] if name != "size" else zero[name]):
            assert kind == PlanMismatch.__name__, (name, kind, text)
        assert re.search(words, zero[name][1])
    assert zero["none"] == one["none"] == ("nothing", "")


def whoever_iterates() -> dict[str, Any]:
    """Look at one batch on rank 0, train on both ranks, then loop on rank 0 alone."""
    rank = forget_launcher()
    agreement.PATIENCE_S = 0.5
    made = sampler()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        look = next(iter(made)) if rank == 0 else None
        dist.barrier()
        epochs = [[ids for ids, _ in scaled(made)] for _ in range(2)]
        # looks with workers, which read ahead; at another sampler; and at one that only this rank makes
        workers = DataLoader(range(70), batch_sampler=sampler(), num_workers=1, collate_fn=list)
        others = [workers, sampler(seed=1), sampler(seed=2)] if rank == 0 else []
        looks = [next(iter(each)) for each in others]
        dist.barrier()
        epochs.append([ids for ids, _ in scaled(workers)])
    with warnings.catch_warnings(record=True) as of_one:
        warnings.simplefilter("always")
        next(iter(sampler(world=World(0, 1))))
    assert agreement.timeout_of(dist.distributed_c10d) == timedelta(seconds=60), "that of the group"
    agreement.timeout_of = lambda c10d: timedelta(seconds=3)
    alone = raised(lambda: list(sampler(seed=5))) if rank == 0 else None
    dist.barrier()
    return {
        "look": look, "looks": looks, "epochs": epochs, "warned": [str(each.message) for each in warned],
        "alone": alone, "of_one": [str(each.message) for each in of_one],
    }  # fmt: skip


def test_a_look_on_one_rank_and_a_loop_on_one_rank() -> None:
    zero, one = run_ranks(whoever_iterates, 2)
    for number, epoch in enumerate((0, 1, 0)):
        for rank, results in enumerate((zero, one)):
            expected = sampler(world=World(rank, 2))
            expected.set_epoch(epoch)
            assert results["epochs"][number] == list(expected)
    assert zero["look"] == zero["looks"][0] == zero["epochs"][0][0]
    warned, *others = zero["warned"]
    assert len(others) == 3, "one that all have iterated to its end before is waited for like another"
    assert (
        "rank 0 begins, and after 0.5 s process 1 has not begun the same. If this is a look at one batch, all is well"
        in warned
    )
    assert one["warned"] == []
    kind, text = zero["alone"]
    assert kind == RankFailure.__name__
    assert "rank 0 iterates, but process 1 has not begun within 3 s, the process group's time-out" in text
    assert "world is rank 0 of 1, but the process group has 2 processes" in zero["of_one"][0]


def looks_and_is_late() -> list[list[list[int]]]:
    """Compare with a look that rank 0 had, in place of the epoch after it, and begin the next epoch before rank 0."""
    rank, made = forget_launcher(), sampler()
    if rank == 0:
        next(iter(made))
    dist.barrier()
    epochs = []
    for _ in range(2):
        time.sleep(1.5 * (rank == 0))
        epochs.append([ids for ids, _ in scaled(made)])
    dist.barrier()
    return epochs


def test_a_look_that_was_compared_is_not_taken_for_another_plan() -> None:
    for rank, epochs in enumerate(run_ranks(looks_and_is_late, 2)):
        for number, epoch in enumerate(epochs):
            expected = sampler(world=World(rank, 2))
            expected.set_epoch(number)
            assert epoch == list(expected)


def passes_on_rank_0() -> dict[str, tuple[str, str]]:
    """Iterate one epoch more on rank 0 than on rank 1, so that it would stay an epoch ahead."""
    rank = forget_launcher()
    agreement.PATIENCE_S = 0.1
    agreement.timeout_of = lambda c10d: timedelta(seconds=1)

    def training(loader: Any, before: int, named: bool = False) -> int:
        steps = 0
        for epoch in range(2):
            if rank == 0 and epoch == before:
                list(loader)  # statistics of the data, or an evaluation
            if named:
                loader.set_epoch(epoch)
            for _ in scaled(loader):
                if rank == 1 and steps == before * 5:
                    time.sleep(2)  # as if this step's collective waited for rank 0
                steps += 1
        return steps

    raised_by = {}
    for before in (0, 1):
        for number, loader in enumerate((sampler(seed=before), StepLoader(range(70), LENGTHS, global_batch=16))):
            raised_by[f"{number} {before}"] = raised(partial(training, loader, before))
            dist.barrier()
    raised_by["named"] = raised(lambda: training(sampler(seed=7), 1, named=True))
    dist.barrier()
    return raised_by


@pytest.mark.filterwarnings("ignore:BatchSampler:UserWarning")
def test_a_whole_epoch_on_one_rank_alone_stops_it() -> None:
    zero, one = run_ranks(passes_on_rank_0, 2)
    for name in ("0 0", "1 0", "0 1", "1 1"):
        kind, text = zero[name]
        assert kind == RankFailure.__name__, (name, kind, text)
        assert "rank 0 has iterated an epoch to its end and begins the next one, but process 1 has not" in text
        assert "world=World(0, 1), or use plans(), or name each epoch by set_epoch before it" in text
    assert zero["named"] == one["named"] == ("nothing", ""), "whose epochs are named may look at a whole one"


def looks_that_were_no_agreement() -> dict[str, Any]:
    """Iterate samplers before there is a process group, and iterate a copy of one."""
    made = [sampler(seed=3), sampler(seed=4)]
    for each in made:
        next(iter(each))
    rank = forget_launcher()
    agreement.PATIENCE_S = 0.2
    agreement.timeout_of = lambda c10d: timedelta(seconds=2)
    steps: list[int] = []
    alone = raised(lambda: steps.extend(map(len, made[0]))) if rank == 0 else None
    dist.barrier()
    copied = pickle.loads(pickle.dumps(made[1]))
    of_copy = raised(lambda: list(copied)) if rank == 0 else None
    dist.barrier()
    # no rank is refused if rank 0 looks at another sampler and is slow afterwards
    agreement.timeout_of = lambda c10d: timedelta(seconds=20)
    training, validation = sampler(seed=5), sampler(lengths=LENGTHS[:30], order="sequential")
    if rank == 0:
        next(iter(validation))
        time.sleep(1.5)
    slow = raised(lambda: list(scaled(training)))
    dist.barrier()
    return {"alone": alone, "steps": len(steps), "copy": of_copy, "slow": slow}


@pytest.mark.slow
def test_a_look_before_there_are_ranks_spends_no_agreement() -> None:
    zero, one = run_ranks(looks_that_were_no_agreement, 2)
    for kind, text in (zero["alone"], zero["copy"]):
        assert kind == RankFailure.__name__
        assert "rank 0 iterates, but process 1 has not begun within 2 s" in text
    assert zero["steps"] <= 1
    assert zero["slow"] == one["slow"] == ("nothing", "")


def plans_that_ran_before() -> dict[str, tuple[str, str]]:
    """Return the error of each rank where what it begins is a plan that all have run before, but not now."""
    rank = forget_launcher()
    agreement.timeout_of = lambda c10d: timedelta(seconds=20)
    made = sampler()
    for epoch in range(2):
        made.set_epoch(epoch)
        list(made)
        dist.barrier()  # ranks meet, as in gradients: none begins a plan again while another is still in it
    raised_by = {"again": raised(lambda: [made.set_epoch(0), list(made)])}
    dist.barrier()
    raised_by["epochs"] = raised(lambda: [made.set_epoch(rank), list(made)])
    dist.barrier()
    for seed in (0, 1):
        list(sampler(seed=seed))
        dist.barrier()
    raised_by["seeds"] = raised(lambda: list(sampler(seed=rank)))
    dist.barrier()
    for counts in (None, len):
        list(scaled(sampler(), counts))
        dist.barrier()
    raised_by["count"] = raised(lambda: list(scaled(sampler(), len if rank else None)))
    dist.barrier()
    return raised_by


def test_plans_that_all_ranks_have_run_before_are_compared_again() -> None:
    for found in run_ranks(plans_that_ran_before, 2):
        assert found.pop("again") == ("nothing", "")
        for name, words in {"epochs": "epoch = ", "seeds": "seed = ", "count": "count = "}.items():
            assert found[name][0] == PlanMismatch.__name__, (name, found[name])
            assert words in found[name][1]


def tensor_parallel() -> list[list[int]]:
    """Run four processes, two for each rank of the data."""
    join_group()
    lists = list(sampler(world=World(dist.get_rank() // 2, 2)))
    dist.barrier()  # rank 0 keeps the store
    return lists


def test_processes_that_share_a_rank() -> None:
    assert run_ranks(tensor_parallel, 4) == [list(sampler(world=World(rank // 2, 2))) for rank in range(4)]


def test_half_an_environment_is_refused_once_iteration_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal waits, as a launcher may set up its process group after the sampler is made."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    made = sampler()
    assert len(made) == 5
    with pytest.raises(ConfigError, match=r"WORLD_SIZE = 2, but RANK is not set.*init_process_group first"):
        next(iter(made))
    monkeypatch.setenv("RANK", "1")
    assert list(made) == list(sampler(world=World(1, 2)))
    with pytest.raises(ConfigError, match="global_batch = 1 is smaller than world_size = 2"):
        next(iter(sampler(global_batch=1)))
