"""Certificates of many kinds of data loader: whether samples are divided over ranks, and the cause if not."""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
)

import ddpsched
from ddpsched.certify.certificate import Certificate, Check
from ddpsched.certify.certify_loader import certify_loader
from ddpsched.errors import ConfigError, DataError

SIZE = 48
DATA = TensorDataset(torch.arange(SIZE, dtype=torch.float32))
LENGTHS = np.random.default_rng(0).integers(3, 60, SIZE)


def distributed(rank: int, world_size: int) -> DataLoader[Any]:
    return DataLoader(DATA, batch_size=4, sampler=DistributedSampler(DATA, world_size, rank))


def uneven(rank: int, world_size: int, drop_last: bool = False) -> DataLoader[Any]:
    data = TensorDataset(torch.zeros(SIZE - 1))
    return DataLoader(data, batch_size=4, sampler=DistributedSampler(data, world_size, rank, drop_last=drop_last))


def uneven_dropped(rank: int, world_size: int) -> DataLoader[Any]:
    return uneven(rank, world_size, drop_last=True)


def undivided(rank: int, world_size: int) -> DataLoader[Any]:
    return DataLoader(DATA, batch_size=4, shuffle=True)


def batches_dropped(rank: int, world_size: int) -> DataLoader[Any]:
    return DataLoader(DATA, batch_size=5, sampler=DistributedSampler(DATA, world_size, rank), drop_last=True)


def planned(rank: int, world_size: int) -> DataLoader[Any]:
    sampler = ddpsched.BatchSampler(LENGTHS, global_batch=8, world=ddpsched.World(rank, world_size))
    return DataLoader(DATA, batch_sampler=sampler)


class Strided:
    """Gives each rank every G-th sample of an order, in lists of four. It resumes unless it ``forgets``."""

    def __init__(self, rank: int, world_size: int, keeps_epoch: bool = True, forgets: bool = False) -> None:
        self.rank, self.world_size, self.keeps_epoch, self.forgets = rank, world_size, keeps_epoch, forgets
        self.epoch = self.done = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch if self.keeps_epoch else 0

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done = 0 if self.forgets else state["done"]

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(SIZE, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        ids = order[self.rank :: self.world_size]
        for start in range(4 * self.done, len(ids), 4):
            self.done += 1
            yield ids[start : start + 4]
        self.done = 0


def resumable(rank: int, world_size: int) -> DataLoader[Any]:
    return DataLoader(DATA, batch_sampler=Strided(rank, world_size))


def ahead(rank: int, world_size: int) -> DataLoader[Any]:
    return DataLoader(DATA, batch_sampler=Strided(rank, world_size), num_workers=1)


def forgetful(rank: int, world_size: int) -> Strided:
    return Strided(rank, world_size, forgets=True)


def one_order(rank: int, world_size: int) -> Strided:
    return Strided(rank, world_size, keeps_epoch=False)


def shorter(rank: int, world_size: int) -> list[list[int]]:
    return [[0, 1], [4, 5]] if rank == 0 else [[2, 3]]


class Lines(IterableDataset[dict[str, int]]):
    """Yields samples without positions, divided by rank."""

    def __init__(self, rank: int, world_size: int, key: str) -> None:
        self.rank, self.world_size, self.key = rank, world_size, key

    def __iter__(self) -> Iterator[dict[str, int]]:
        return iter({self.key: i} for i in range(self.rank, SIZE, self.world_size))


def own_shard(rank: int, world_size: int) -> DataLoader[Any]:
    return DataLoader(Subset(range(40), range(rank, 40, world_size)), batch_size=4)


def divided_twice(rank: int, world_size: int) -> DataLoader[Any]:
    share = Subset(Subset(range(80), range(40)), range(rank, 40, world_size))
    return DataLoader(share, batch_size=2, sampler=DistributedSampler(share, world_size, rank))


def own_data(rank: int, world_size: int) -> DataLoader[Any]:
    return DataLoader(range(40 + rank), batch_size=4)


def lines(rank: int, world_size: int) -> DataLoader[Any]:
    return DataLoader(Lines(rank, world_size, "id"), batch_size=4)


def lines_twice(rank: int, world_size: int) -> DataLoader[Any]:
    return DataLoader(Lines(rank, world_size, "id"), batch_size=4, num_workers=2)


def lines_without_id(rank: int, world_size: int) -> DataLoader[Any]:
    return DataLoader(Lines(rank, world_size, "line"), batch_size=4)


def lines_and_how(rank: int, world_size: int) -> tuple[DataLoader[Any], Any]:
    return lines_without_id(rank, world_size), lambda batch: batch["line"]


def without_group(rank: int, world_size: int) -> DataLoader[Any]:
    return DataLoader(DATA, batch_size=4, sampler=DistributedSampler(DATA))


def single_ids(rank: int, world_size: int) -> RandomSampler:
    return RandomSampler(DATA)


def check(certificate: Certificate, name: str) -> Check:
    (result,) = [each for each in certificate.checks if each.name == name]
    return result


def failed(certificate: Certificate) -> list[str]:
    return [each.name for each in certificate.checks if not each.holds]


def test_distributed_sampler_holds_but_cannot_resume() -> None:
    certificate = certify_loader(distributed, 2)
    assert failed(certificate) == ["resumption"]
    assert "no state_dict" in check(certificate, "resumption").says
    assert "48 samples in 6 steps on 2 ranks, each run once" in check(certificate, "every sample once").says
    assert any("set_epoch(e) was called before each epoch (sampler)" in fact for fact in certificate.facts)
    assert any("ranks run equal counts" in fact for fact in certificate.facts)


def test_distributed_sampler_repeats_or_leaves_out_what_ranks_do_not_divide() -> None:
    once = check(certify_loader(uneven, 4), "every sample once")
    assert not once.holds
    assert once.says.startswith("epoch 0: ")
    assert "1 ran more than once" in once.says
    assert "DistributedSampler(drop_last=False) repeats 1 sample(s), as 4 ranks do not divide 47" in str(once.cause)
    once = check(certify_loader(uneven_dropped, 4), "every sample once")
    assert "3 never ran" in once.says
    assert "DistributedSampler(drop_last=True) leaves out 3 sample(s)" in str(once.cause)


def test_a_loader_without_a_distributed_sampler_is_blamed() -> None:
    once = check(certify_loader(undivided, 2), "every sample once")
    assert "48 ran more than once" in once.says
    assert "every rank runs every sample: no DistributedSampler" in str(once.cause)
    assert check(certify_loader(undivided, 1), "every sample once").holds


def test_subsets_are_seen_through() -> None:
    assert failed(certify_loader(own_shard, 2)) == ["resumption"]
    twice = check(certify_loader(divided_twice, 2), "every sample once")
    assert not twice.holds
    assert "20 runs of them" in twice.says
    with pytest.raises(DataError, match=r"data sets have lengths \['40', '41'\]"):
        certify_loader(own_data, 2)


def test_a_dropped_batch_is_named() -> None:
    once = check(certify_loader(batches_dropped, 2), "every sample once")
    assert "DataLoader(drop_last=True) leaves out the last, incomplete batch" in str(once.cause)


def test_our_own_batch_sampler_asks_for_the_scale() -> None:
    certificate = certify_loader(planned, 2)
    assert certificate.holds, certificate.text()
    (asked,) = [fact for fact in certificate.facts if fact.startswith("gradient")]
    assert "unequal counts" in asked
    assert "its scale: loader.scale, or ddpsched.scaled(loader)" in asked


@pytest.mark.parametrize("policy", ["static", "balanced", "minmax"])
@pytest.mark.parametrize("order", ["sequential", "curriculum"])
def test_an_order_that_is_the_same_in_every_epoch_is_no_fault(policy: str, order: str) -> None:
    """set_epoch does not change these orders."""

    def build(rank: int, world_size: int) -> Any:
        sampler = ddpsched.BatchSampler(
            LENGTHS, global_batch=8, world=ddpsched.World(rank, world_size), policy=policy, order=order
        )
        return DataLoader(DATA, batch_sampler=sampler)

    certificate = certify_loader(build, 2)
    assert certificate.holds, certificate.text()
    assert f"every epoch takes the samples in the same order, as order = '{order}' asks for" in certificate.facts


@pytest.mark.parametrize("workers", [None, 0, 1])
@pytest.mark.parametrize("last", ["smaller", "join", "drop"])
def test_the_last_step_of_an_epoch(last: str, workers: int | None) -> None:
    """48 samples in steps of 23 leave two for four ranks."""

    def build(rank: int, world_size: int) -> Any:
        sampler = ddpsched.BatchSampler(LENGTHS, global_batch=23, world=ddpsched.World(rank, world_size), last=last)
        return sampler if workers is None else DataLoader(DATA, batch_sampler=sampler, num_workers=workers)

    certificate = certify_loader(build, 4)
    stand_ins = [fact for fact in certificate.facts if "stand-ins" in fact]
    if last == "drop":
        once = check(certificate, "every sample once")
        assert "2 never ran" in once.says
        assert "last = 'drop' leaves out an epoch's last samples; 'smaller' and 'join' run them" in str(once.cause)
        assert failed(certificate) == ["every sample once"]
    else:
        assert certificate.holds, certificate.text()
    assert [fact[:25] for fact in stand_ins] == (["6 list(s) are stand-ins, "] if last == "smaller" else [])


def test_other_ways_to_our_own_lists() -> None:
    """A sampler of whole batches holds, and so does a StepLoader with the same order in every epoch."""

    def of_lists(rank: int, world_size: int) -> Any:
        sampler = ddpsched.BatchSampler(LENGTHS, global_batch=8, world=ddpsched.World(rank, world_size))
        return DataLoader(DATA, sampler=sampler, batch_size=None)

    def of_steps(rank: int, world_size: int) -> Any:
        world = ddpsched.World(rank, world_size)
        loader = ddpsched.StepLoader(
            range(SIZE), LENGTHS, world=world, global_batch=8, order="curriculum", collate_fn=list
        )
        return loader, lambda batches: [id for batch in batches for id in batch]

    for build in (of_lists, of_steps):
        certificate = certify_loader(build, 2)
        assert certificate.holds, certificate.text()
        assert not any("a training loop must do so too" in fact for fact in certificate.facts)


def prepared(rank: int, world_size: int, ours: bool) -> Any:
    """Return a loader prepared by Accelerate on one of several ranks."""
    from accelerate.data_loader import prepare_data_loader

    loader = planned(rank, world_size) if ours else DataLoader(DATA, batch_size=5)
    return prepare_data_loader(loader, num_processes=world_size, process_index=rank)


def test_loaders_prepared_by_accelerate_are_reported() -> None:
    """A ddpsched loader is divided twice. A plain one repeats samples, and its state_dict raises."""
    pytest.importorskip("accelerate")
    once = check(certify_loader(lambda rank, size: prepared(rank, size, ours=True), 2), "every sample once")
    assert not once.holds
    assert "BatchSamplerShard gives each of 2 processes every 2th list" in str(once.cause)
    certificate = certify_loader(lambda rank, size: prepared(rank, size, ours=False), 2)
    assert failed(certificate) == ["every sample once", "resumption", "new order every epoch"]
    assert "2 ran more than once" in check(certificate, "every sample once").says
    assert "state_dict raised AttributeError" in check(certificate, "resumption").says


def test_a_sampler_with_a_state_resumes_and_one_that_forgets_does_not() -> None:
    certificate = certify_loader(resumable, 3)
    assert certificate.holds, certificate.text()
    assert "by the state of batch_sampler" in check(certificate, "resumption").says
    resumed = check(certify_loader(forgetful, 3), "resumption")
    assert not resumed.holds
    assert "it starts over at the first step" in str(resumed.cause)


def test_workers_that_ask_ahead_spoil_a_samplers_state() -> None:
    certificate = certify_loader(ahead, 2)
    assert failed(certificate) == ["resumption"]
    resumed = check(certificate, "resumption")
    assert "it skips 2 step(s); a DataLoader with workers asks batch_sampler for batches ahead" in str(resumed.cause)


def test_one_order_for_all_epochs_is_found() -> None:
    order = check(certify_loader(one_order, 2), "new order every epoch")
    assert not order.holds
    assert order.cause == "set_epoch(e) of the loader changes nothing"


def test_sequential_is_no_fault() -> None:
    certificate = certify_loader(lambda rank, size: BatchSampler(SequentialSampler(DATA), 4, False), 1)
    assert failed(certificate) == ["resumption"]
    assert "every epoch takes the samples in the same rising order" in certificate.facts


def test_a_rank_with_fewer_steps_is_named() -> None:
    steps = check(certify_loader(shorter, 2), "same number of steps")
    assert not steps.holds
    assert "rank 1" in str(steps.cause)
    assert "wait for a gradient in vain" in str(steps.cause)


def test_samples_without_positions_tell_their_ids() -> None:
    for build in (lines, lines_and_how):
        assert failed(certify_loader(build, 2)) == ["resumption"]
    once = check(certify_loader(lines_twice, 2), "every sample once")
    assert "each of 2 workers yields all of its rank's samples" in str(once.cause)
    with pytest.raises(DataError, match=r"which samples a batch holds .*\['line'\].* key 'id'"):
        certify_loader(lines_without_id, 2)


def test_functions_that_cannot_be_used() -> None:
    with pytest.raises(DataError, match=r"raised ValueError: .*; pass num_replicas=world_size and rank=rank"):
        certify_loader(without_group, 2)
    with pytest.raises(DataError, match=r"lists of ids"):
        certify_loader(single_ids, 2)
    with pytest.raises(DataError, match=r"returned int, which cannot be iterated"):
        certify_loader(lambda rank, size: 3, 2)
    with pytest.raises(ConfigError, match=r"module:function"):
        certify_loader("train.py", 2)
    with pytest.raises(ConfigError, match=r"No module named 'nowhere'; looked in"):
        certify_loader("nowhere:loader", 2)
    with pytest.raises(ConfigError, match=r"'json' has no attribute 'loader'"):
        certify_loader("json:loader", 2)
    with pytest.raises(ConfigError, match=r"world_size = 0"):
        certify_loader(distributed, 0)


def test_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("somebodys_training")
    module.__dict__["build"] = resumable
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert certify_loader("somebodys_training:build", 2).subject == "loader somebodys_training:build"
