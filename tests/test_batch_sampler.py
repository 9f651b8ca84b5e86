"""BatchSampler: one rank's plans inside the user's loop."""

import json
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from ddpsched import BatchSampler, World, scaled
from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.errors import ConfigError, DataError

LENGTHS = sst2_lengths(103, np.random.default_rng(0))
POLICIES = ["static", "minmax", "balanced"]


def without_stand_ins(sampler: BatchSampler) -> list[list[int]]:
    return [ids if scale else [] for ids, scale in scaled(sampler)]


@pytest.mark.parametrize("policy", POLICIES)
def test_ranks_share_every_epoch_and_the_scale_is_the_plans(policy: str) -> None:
    ranks = [BatchSampler(LENGTHS, global_batch=16, world=World(r, 4), policy=policy) for r in range(4)]
    orders = []
    for epoch in range(2):
        for rank in ranks:
            rank.set_epoch(epoch)
        assert len(ranks[0]) == 7
        steps = list(zip(*map(without_stand_ins, ranks), strict=True))
        assert len(steps) == 7
        assert Counter(i for step in steps for ids in step for i in ids) == Counter(range(103))
        for index, step in enumerate(steps):
            for rank, ids in zip(ranks, step, strict=True):
                assert rank.sum_scale(index) == (4 / sum(map(len, step)) if ids else 0)
        orders.append([sorted(i for ids in step for i in ids) for step in steps])
    assert orders[0] != orders[1], "another epoch is another order"


def test_summed_losses_through_data_loaders_add_up_to_the_mean_over_the_global_batch() -> None:
    data, weight = torch.randn(103, 3, dtype=torch.float64), torch.ones(3, dtype=torch.float64, requires_grad=True)
    samplers = [BatchSampler(LENGTHS, global_batch=16, world=World(r, 4)) for r in range(4)]
    loaders = [DataLoader(data, batch_sampler=sampler) for sampler in samplers]
    for index, (batches, ids) in enumerate(zip(zip(*loaders, strict=True), zip(*samplers, strict=True), strict=True)):
        shares = [
            torch.autograd.grad(((x @ weight) ** 2).sum() * samplers[0].sum_scale(index), weight)[0] for x in batches
        ]
        (expected,) = torch.autograd.grad(((data[list(chain(*ids))] @ weight) ** 2).mean(), weight)
        torch.testing.assert_close(torch.stack(shares).mean(0), expected, rtol=1e-12, atol=0)


def test_bad_arguments() -> None:
    for lengths, words in (([], "flat array"), ([1.5, 2.0], "integers"), ([3, 0], r"lengths\[1\] = 0")):
        with pytest.raises(DataError, match=words):
            BatchSampler(lengths, global_batch=2, world=World(0, 2))
    with pytest.raises(ConfigError, match="global_batch = 1 is smaller than world_size = 2"):
        BatchSampler([3, 4], global_batch=1, world=World(0, 2))
    with pytest.raises(IndexError, match="step 7 of an epoch of 7"):
        BatchSampler(LENGTHS, global_batch=16, world=World(0, 4)).sum_scale(7)


def sampler(policy: Any, rank: int = 0, **changes: Any) -> BatchSampler:
    values = {"lengths": LENGTHS, "global_batch": 16, "world": World(rank, 4), "policy": policy, "seed": 5, **changes}
    return BatchSampler(**values)


def epochs_of(policy: str, count: int = 3) -> list[list[list[int]]]:
    """Return rank 0's lists of each epoch."""
    whole, lists = sampler(policy), []
    for epoch in range(count):
        whole.set_epoch(epoch)
        lists.append(list(whole))
    return lists


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("done", [0, 1, 6, 7])
def test_a_loaded_state_goes_on_and_the_scale_with_it(policy: str, done: int) -> None:
    """All ranks save the same state; a step's scale follows its place in the epoch."""
    states, got = [], []
    for rank in range(4):
        first = sampler(policy, rank)
        first.set_epoch(1)
        got.append(list(islice(first, done)))
        states.append(json.loads(json.dumps(first.state_dict())))
    assert states[0] == states[1] == states[2] == states[3]
    resumed = [sampler(policy, rank) for rank in range(4)]
    for each in resumed:
        each.load_state_dict(states[0])
        each.set_epoch(1)  # as loops over epochs do
        assert (each.first_step, len(each)) == (done, 7)
    for index, step in enumerate(zip(*resumed, strict=True), resumed[0].first_step):
        assert resumed[0].sum_scale(index) == 4 / sum(map(len, step))
        for lists, ids in zip(got, step, strict=True):
            lists.append(ids)
    assert got[0] == epochs_of(policy)[1]
    assert Counter(i for lists in got for ids in lists for i in ids) == Counter(range(103))
    assert resumed[0].first_step == 0
    resumed[0].set_epoch(2)
    assert list(resumed[0]) == epochs_of(policy)[2]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_state_one_step_off_is_another_stream(policy: str) -> None:
    first, expected = sampler(policy), epochs_of(policy)[0]
    assert list(islice(first, 3)) == expected[:3]
    late = first.state_dict()
    other = sampler(policy)
    list(islice(other, 2))
    for state, equal in ((late, True), (other.state_dict(), False)):
        resumed = sampler(policy)
        resumed.load_state_dict(state)
        assert (list(resumed) == expected[3:]) == equal


def test_states_around_the_end_of_an_epoch() -> None:
    """After the last list nothing is left of the epoch; after the iteration's end the next epoch begins."""
    epochs, first = epochs_of("minmax"), sampler("minmax")
    lists = iter(first)
    last = list(islice(lists, 7))
    nothing_left = first.state_dict()
    assert next(lists, None) is None
    assert next(lists, None) is None
    over = first.state_dict()
    assert last == epochs[0]
    assert list(first) == epochs[1], "without set_epoch the next iteration is the next epoch"
    resumed = sampler("minmax")
    resumed.load_state_dict(nothing_left)
    assert (list(resumed), list(resumed)) == ([], epochs[1])
    resumed.load_state_dict(over)
    assert list(resumed) == epochs[1]
    resumed.load_state_dict(nothing_left)
    resumed.set_epoch(2)
    assert list(resumed) == epochs[2], "another epoch than the state's begins at its first step"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_plain_data_loader_goes_on(workers: int) -> None:
    """A loader with worker processes calls iter() twice, and neither call consumes the state."""
    first, expected = sampler("minmax"), epochs_of("minmax")[0]
    list(islice(first, 3))
    resumed = sampler("minmax")
    resumed.load_state_dict(first.state_dict())
    loader = DataLoader(torch.arange(103), batch_sampler=resumed, num_workers=workers)
    assert [batch.tolist() for batch in loader] == expected[3:]


class Stateful:
    """Resumes as torchdata's StatefulDataLoader does.

    Both states are kept; the sampler's is loaded first, then a new iterator's.
    """

    def __init__(self, sampler: BatchSampler, state: dict[str, Any] | None = None) -> None:
        self.sampler, self.lists = sampler, iter(sampler)
        if state is not None:
            sampler.load_state_dict(state["sampler"])
            self.lists = iter(sampler)
            self.lists.load_state_dict(state["iterator"])

    def __iter__(self) -> Iterator[list[int]]:
        return self.lists

    def state(self) -> dict[str, Any]:
        both = {"sampler": self.sampler.state_dict(), "iterator": self.lists.state_dict()}
        return json.loads(json.dumps(both))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("done", [0, 2, 7])
def test_the_protocol_of_stateful_loaders(policy: str, done: int) -> None:
    first, epochs = sampler(policy), epochs_of(policy)
    first.set_epoch(1)
    loader = Stateful(first)
    got = list(islice(loader, done))
    kept = loader.state()
    resumed = sampler(policy)
    assert got + list(Stateful(resumed, kept)) == epochs[1]
    resumed.set_epoch(2)
    assert list(Stateful(resumed)) == epochs[2]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("done", [0, 2, 7])
def test_torchdatas_loader_itself(workers: int, done: int) -> None:
    """A loader with workers reads ahead, yet its state is that of the last batch it returned, also after an epoch."""
    loaders = pytest.importorskip("torchdata.stateful_dataloader")
    epochs = epochs_of("minmax")

    def loader_of(sampler: BatchSampler) -> Any:
        return loaders.StatefulDataLoader(torch.arange(103), batch_sampler=sampler, num_workers=workers)

    first = sampler("minmax")
    first.set_epoch(1)
    loader = loader_of(first)
    got = [batch.tolist() for batch in (islice(loader, done) if done < 7 else loader)]
    resumed, epoch = sampler("minmax"), 1 + (done == 7)
    other = loader_of(resumed)
    other.load_state_dict(loader.state_dict())
    resumed.set_epoch(epoch)
    rest = [batch.tolist() for batch in other]
    assert rest == epochs[2] if done == 7 else got + rest == epochs[1]


@pytest.mark.parametrize(
    ("policy", "changes", "words"),
    [
        ("static", {}, "policy.kind = 'minmax', here 'static'"),
        ({"kind": "minmax", "prefetch": 9}, {}, "prefetch = the default, here 9"),
        ("minmax", {"global_batch": 15}, "global_batch = 16, here 15"),
        ("minmax", {"world": World(0, 2)}, "world_size = 4, here 2"),
        ("minmax", {"seed": 6}, "seed = 5, here 6"),
        ("minmax", {"lengths": LENGTHS[:100]}, "num_samples = 103, here 100"),
        ("minmax", {"lengths": LENGTHS[::-1]}, r"data \(the digest of its lengths\) = '[0-9a-f]{32}', here '"),
        ("minmax", {"order": "sequential"}, "order.kind = 'shuffled', here 'sequential'"),
        ({"kind": "minmax", "solver": "threshold"}, {}, "policy.solver = the default, here 'threshold'"),
    ],
)
def test_the_state_of_another_sampler(policy: Any, changes: dict[str, Any], words: str) -> None:
    first, other = sampler("minmax"), sampler(policy, **changes)
    next(iter(first))
    for reader in (other, iter(other)):
        with pytest.raises(ConfigError, match=words):
            reader.load_state_dict(first.state_dict())
    assert list(other) == list(sampler(policy, **changes)), "a refused state changes nothing"


def test_a_state_that_cannot_be_read() -> None:
    first = sampler("minmax")
    next(iter(first))
    state = first.state_dict()
    for wrong, words in (
        (None, "needs exactly .*'position'.*, got None"),
        ({**state, "rank": 0}, "got .*'rank'"),
        ({**state, "position": {"epoch": 0}}, "a position needs exactly"),
        ({**state, "position": {**state["position"], "cursor": 4000}}, "cursor = 4000 lies beyond the data: 103"),
    ):
        with pytest.raises(ConfigError, match=words):
            sampler("minmax").load_state_dict(wrong)


def test_an_epoch_may_be_named_until_the_first_list() -> None:
    """Lightning makes its iterator first, and then sets the epoch that it resumes."""
    made, epochs = sampler("balanced"), epochs_of("balanced")
    lists = iter(made)
    made.set_epoch(2)
    assert lists.state_dict() == made.state_dict()
    assert list(lists) == epochs[2]
    assert made.epoch == 3
