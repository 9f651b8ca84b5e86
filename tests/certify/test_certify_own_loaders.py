"""Certificates of ddpsched's own loaders, and of those whose seed or order is another than it was."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from test_certify_loader import DATA, LENGTHS, SIZE, Strided, check
from torch.utils.data import DataLoader, DistributedSampler

import ddpsched
from ddpsched.certify.certify_loader import certify_loader


def other_seeds(rank: int, world_size: int) -> DataLoader[Any]:
    return DataLoader(DATA, batch_size=4, sampler=DistributedSampler(DATA, world_size, rank, seed=rank))


def test_ranks_with_other_seeds_are_named() -> None:
    cause = check(certify_loader(other_seeds, 2), "every sample once").cause
    assert cause is not None
    assert "each rank takes its share of another order: the seed, or set_epoch(e), differs" in cause


class Redrawn(Strided):
    """Continues with what is left, in an order drawn anew; or with what is left of the epoch before."""

    def __init__(self, rank: int, world_size: int, other_epoch: bool = False) -> None:
        super().__init__(rank, world_size)
        self.loaded, self.other_epoch = False, other_epoch

    def load_state_dict(self, state: dict[str, int]) -> None:
        super().load_state_dict(state)
        self.loaded = True

    def __iter__(self) -> Iterator[list[int]]:
        if self.loaded and self.other_epoch:
            self.epoch += 7
        done, lists = self.done, list(super().__iter__())
        if self.loaded and not self.other_epoch:
            flat = sorted(id for ids in lists for id in ids)
            lists = [flat[i : i + 4] for i in range(0, len(flat), 4)]
        self.done = done
        for ids in lists:
            self.done += 1
            yield ids
        self.done = 0


def redrawn(rank: int, world_size: int) -> Redrawn:
    return Redrawn(rank, world_size)


def of_another_epoch(rank: int, world_size: int) -> Redrawn:
    return Redrawn(rank, world_size, other_epoch=True)


@pytest.mark.parametrize(("make", "words"), [(redrawn, "in another order"), (of_another_epoch, "other samples follow")])
def test_another_order_and_another_seed_are_told_apart(make: Any, words: str) -> None:
    result = check(certify_loader(make, 2), "resumption")
    assert not result.holds
    assert words in (result.cause or "")


class Arrays(torch.utils.data.Dataset[torch.Tensor]):
    """Samples that default collate cannot stack."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, id: int) -> torch.Tensor:
        return torch.zeros(int(LENGTHS[id]))


def without_world(rank: int, world_size: int) -> ddpsched.StepLoader:
    return ddpsched.StepLoader(Arrays(), LENGTHS, global_batch=11, collate_fn=list)


def sampler_without_world(rank: int, world_size: int) -> DataLoader[Any]:
    return DataLoader(DATA, batch_sampler=ddpsched.BatchSampler(LENGTHS, global_batch=11))


def of_another_world(rank: int, world_size: int) -> ddpsched.StepLoader:
    return ddpsched.StepLoader(Arrays(), LENGTHS, global_batch=11, world=ddpsched.World(0, 1), collate_fn=list)


@pytest.mark.parametrize("make", [without_world, sampler_without_world])
def test_a_loader_without_a_world_is_of_the_ranks_that_are_certified(make: Any) -> None:
    assert certify_loader(make, 2).holds
    assert not check(certify_loader(of_another_world, 2), "every sample once").holds


def several(rank: int, world_size: int) -> ddpsched.StepLoader:
    policy = {"kind": "balanced", "max_microbatches": 3}
    world = ddpsched.World(rank, world_size)
    return ddpsched.StepLoader(Arrays(), LENGTHS, global_batch=11, policy=policy, world=world, collate_fn=list)


def balanced(rank: int, world_size: int) -> Any:
    return ddpsched.balanced(DataLoader(Arrays(), 4, shuffle=True, collate_fn=list), LENGTHS)


def balanced_and_scaled(rank: int, world_size: int) -> Any:
    return ddpsched.scaled(balanced(rank, world_size))


def test_a_scaled_balanced_loader_is_judged_as_it_trains() -> None:
    """Its global batch is of all ranks, as the loader's own is."""
    texts = [certify_loader(make, 4).text() for make in (balanced, balanced_and_scaled)]
    assert texts[0].splitlines()[1:] == texts[1].splitlines()[1:]


@pytest.mark.parametrize("make", [several, balanced])
def test_lists_of_micro_batches_and_balanced_loaders(make: Any) -> None:
    certificate = certify_loader(make, 3)
    assert certificate.holds, certificate.text()
    assert "in each of 3 epochs" in check(certificate, "every sample once").says
    resumed = check(certificate, "resumption").says
    assert "epoch 0 after step" in resumed
    assert "1 at its start" in resumed
