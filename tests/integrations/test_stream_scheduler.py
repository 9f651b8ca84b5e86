"""StreamScheduler: minmax over streams, by messages of ranks: every sample once, no hang, the same after a resume."""

import itertools
import pickle
import random
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from ddpsched import ConfigError, PoolStream, StreamScheduler, World, scaled
from ddpsched.exchange import offer_row
from ddpsched.planning.solvers.allocation import solve

TEXTS = ["x" * int(n) for n in np.random.default_rng(0).integers(1, 60, 101)]
TEXTS = [f"{number:03d}" + text for number, text in enumerate(TEXTS)]


class Shard(IterableDataset[str]):
    """Every ``size``-th text from ``rank`` on, in another order each epoch; its workers share them."""

    def __init__(self, rank: int, size: int, count: int = len(TEXTS)) -> None:
        self.texts, self.epoch = TEXTS[:count][rank::size], 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[str]:
        worker = get_worker_info()
        mine = self.texts if worker is None else self.texts[worker.id :: worker.num_workers]
        yield from random.Random(self.epoch).sample(mine, len(mine))


def stream(rank: int = 0, size: int = 1, **words: Any) -> StreamScheduler:
    words = {"global_batch": 8, "world": World(rank, size), **words}
    return StreamScheduler(Shard(rank, size), len, **words)


def test_one_rank_gets_every_sample_once_an_epoch_in_another_order() -> None:
    epochs = [list(itertools.chain(*loader)) for loader in itertools.repeat(stream(), 2)]
    assert Counter(epochs[0]) == Counter(epochs[1]) == Counter(TEXTS)
    assert epochs[0] != epochs[1]


def epochs(count: int = len(TEXTS)) -> list[list[tuple[list[str], float, int]]]:
    """Return this rank's batches, scales and B, of two epochs."""
    dist.init_process_group("gloo")
    shard: Any = Shard(dist.get_rank(), dist.get_world_size(), count)
    loader = StreamScheduler(shard, len, global_batch=8)
    return [[(batch, scale, loader.step.num_samples) for batch, scale in scaled(loader)] for _ in range(2)]


def expected(ranks: int) -> list[list[int]]:
    """Return the counts of each step of epoch 0, by windows kept here."""
    windows = [list(Shard(rank, ranks)) for rank in range(ranks)]
    counts, prefetch = [], -(-16 // ranks)
    while any(windows):
        rows = []
        for window in windows:
            lengths = np.maximum.accumulate([len(text) for text in window[:prefetch]] or [0])
            costs = lengths * np.arange(1, len(lengths) + 1) if window else np.zeros(0, dtype=np.int64)
            rows.append(offer_row(0, 0, costs, len(costs), prefetch))
        table = np.stack(rows)
        taken = solve(table[:, 4:], min(8, int(table[:, 3].sum())), caps=table[:, 3]).counts.tolist()
        counts.append(taken)
        windows = [window[count:] for window, count in zip(windows, taken, strict=True)]
    return counts


@pytest.mark.parametrize("ranks", [2, 3])
def test_each_sample_once_and_the_counts_of_the_solver(ranks: int) -> None:
    found = run_ranks(epochs, ranks)
    for epoch in range(2):
        steps = list(zip(*(each[epoch] for each in found), strict=True))
        real = [batch for step in steps for batch, scale, _ in step if scale]
        assert Counter(itertools.chain(*real)) == Counter(TEXTS)
        for step in steps:
            size = sum(len(batch) for batch, scale, _ in step if scale)
            assert {each for _, _, each in step} == {size}
            assert all(scale in (0, ranks / size) and batch for batch, scale, _ in step)
        if epoch == 0:
            assert [[len(batch) * bool(scale) for batch, scale, _ in step] for step in steps] == expected(ranks)


@pytest.mark.parametrize("count", [2, 3, 5, 17])
def test_small_streams_end_together(count: int) -> None:
    found = run_ranks(epochs, 2, count)
    assert len(found[0][0]) == len(found[1][0])
    real = [batch for each in found for batch, scale, _ in each[0] if scale]
    assert Counter(itertools.chain(*real)) == Counter(TEXTS[:count])


def test_workers_read_the_samples() -> None:
    """They read ahead of what waits here, and a state is still of the batch yielded last."""

    def through_workers() -> StreamScheduler:
        shard = DataLoader(Shard(0, 1), batch_size=None, num_workers=2)
        return StreamScheduler(shard, len, global_batch=8, world=World(0, 1))

    whole = [batch for _ in range(2) for batch in through_workers()]
    assert Counter(itertools.chain(*whole[: len(whole) // 2])) == Counter(TEXTS)
    loader = through_workers()
    got = list(itertools.islice(loader, 5))
    state, rest = pickle.loads(pickle.dumps(loader.state_dict())), through_workers()
    rest.load_state_dict(state)
    assert [*got, *rest] == whole[: len(whole) // 2]


def resumed(breaks: list[int], size: int) -> tuple[list[Any], list[Any]]:
    """Return this rank's batches of two epochs, without and with a state that is taken, stored and loaded at breaks."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    def items(loader: StreamScheduler) -> Iterator[tuple[int, list[str], float]]:
        for _ in range(loader.epoch, 2):
            for batch, scale in scaled(loader):
                yield loader.step.epoch, batch, scale

    whole = list(items(stream(rank, size)))
    got, loader = [], stream(rank, size)
    for place in [*breaks, len(whole)]:
        got += itertools.islice(items(loader), place - len(got))
        state = pickle.loads(pickle.dumps(loader.state_dict()))
        loader = stream(rank, size)
        loader.load_state_dict(state)
    return whole, got


@pytest.mark.parametrize("breaks", [[1], [5, 6], [13], [14], [20, 25], [26]])
def test_goes_on_where_it_was(breaks: list[int]) -> None:
    for whole, got in run_ranks(resumed, 2, breaks, 2):
        assert len(whole) == 26
        assert got == whole


def test_naming_another_epoch_drops_a_loaded_position() -> None:
    first, loader, fresh = stream(), stream(), stream()
    next(iter(first))
    loader.load_state_dict(first.state_dict())
    with pytest.warns(
        UserWarning, match=r"StreamScheduler: set_epoch\(1\) drops the loaded position, step 1 of epoch 0"
    ):
        loader.set_epoch(1)
    fresh.set_epoch(1)
    assert list(loader) == list(fresh)


def same_stream(shards: list[tuple[int, int]], global_batch: int) -> list[str]:
    dist.init_process_group("gloo")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        list(StreamScheduler(Shard(*shards[dist.get_rank()]), len, global_batch=global_batch))
    return [str(each.message) for each in caught if "StreamScheduler" in str(each.message)]


@pytest.mark.parametrize("global_batch", [3, 4, 16])
def test_ranks_that_read_the_same_stream_are_named(global_batch: int) -> None:
    """Also where they prefetch few samples, and one is ahead of the others."""
    for said in run_ranks(same_stream, 3, [(0, 2), (1, 2), (0, 2)], global_batch):
        assert len(said) == 1
        assert "the first 16 samples of ranks 0, 2 are as long, so they may read the same stream" in said[0]
    assert run_ranks(same_stream, 3, [(0, 3), (1, 3), (2, 3)], global_batch) == [[]] * 3


def by_length() -> list[str]:
    """Ranks whose own samples come in the order of their lengths, which are the same."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        list(StreamScheduler([f"{rank}" + "x" * n for n in range(40)], len, global_batch=8))
    return [str(each.message) for each in caught if "StreamScheduler" in str(each.message)]


def test_streams_in_the_order_of_their_lengths_may_be_alike() -> None:
    assert run_ranks(by_length, 2) == [[]] * 2


@pytest.mark.parametrize("read", [StreamScheduler, PoolStream])
def test_workers_that_read_the_same_samples_are_named(read: Any) -> None:
    class Undivided(IterableDataset[str]):
        def __iter__(self) -> Iterator[str]:
            return iter(TEXTS)

    settings: dict[str, Any] = (
        {"global_batch": 4}
        if read is StreamScheduler
        else {
            "policy": {"kind": "pool", "max_tokens_for_batch": 900, "pool_size": 64},
            "infinite_loop": False,
        }
    )
    for data, named in ((Undivided(), True), (Shard(0, 1), False)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            list(read(DataLoader(data, batch_size=None, num_workers=2), len, world=World(0, 1), **settings))
        said = [str(each.message) for each in caught if not str(each.message).startswith("This DataLoader will create")]
        assert ["the first 16 samples of all 2 workers are as long" in each for each in said] == [True] * named


def test_a_look_at_one_batch_begins_the_epoch_again() -> None:
    loader = stream()
    first = next(iter(loader))
    assert next(iter(loader)) == first
    assert Counter(itertools.chain(*loader)) == Counter(TEXTS)
    loader.set_epoch(0)
    assert next(iter(loader)) == first


def gradients() -> list[tuple[int, torch.Tensor, list[str]]]:
    """Return whether this rank has samples, the gradient, and its texts, of each step."""
    dist.init_process_group("gloo")
    rank, model = dist.get_rank(), DistributedDataParallel(torch.nn.Linear(1, 1, bias=False).double())
    torch.nn.init.ones_(model.module.weight)
    found = []
    for batch, scale in scaled(StreamScheduler(Shard(rank, 2), len, global_batch=8)):
        model.zero_grad()
        values = torch.tensor([[float(len(text))] for text in batch], dtype=torch.float64)
        (scale * (model(values) ** 2).sum()).backward()
        found.append((bool(scale), model.module.weight.grad.item(), batch))
    return found


def test_the_gradient_is_the_mean_over_the_steps_samples() -> None:
    for step in zip(*run_ranks(gradients, 2), strict=True):
        lengths = [len(text) for scale, _, batch in step if scale for text in batch]
        exact = sum(2 * length**2 for length in lengths) / len(lengths)
        assert [gradient for _, gradient, _ in step] == pytest.approx([exact, exact], rel=1e-12)


def fails(kind: str) -> str:
    """Return what this rank raises where rank 1 cannot go on."""
    dist.init_process_group("gloo")
    rank, texts = dist.get_rank(), TEXTS
    words: dict[str, Any] = {"global_batch": 8}

    def broken() -> Iterator[str]:
        yield from texts[:20]
        raise OSError("the disk is gone")

    shard: Any = Shard(rank, 2)
    if rank == 1:
        shard = {"reads": broken(), "measures": ["", *texts], "nothing": []}.get(kind, shard)
    if kind == "prefetch" and rank == 1:
        words["prefetch"] = 9
    raised = "nothing"
    try:
        for _ in StreamScheduler(shard, len, **words):
            pass
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
    dist.barrier()  # rank 0 holds the store, which the other may still be asking
    return raised


@pytest.mark.parametrize(
    ("kind", "others", "own"),
    [
        ("reads", "RankFailure: StreamScheduler: rank 1 could not read", "OSError: the disk is gone"),
        ("measures", "RankFailure: StreamScheduler: rank 1 could not read", "DataError: length_fn of sample 0"),
        (
            "nothing",
            "RankFailure: StreamScheduler: rank 1 has no samples at all",
            "RankFailure: StreamScheduler: rank 1",
        ),
        ("prefetch", "PlanMismatch: StreamScheduler: ranks would follow", "PlanMismatch: StreamScheduler: ranks would"),
    ],
)
def test_all_ranks_raise_where_one_cannot_go_on(kind: str, others: str, own: str) -> None:
    found = run_ranks(fails, 2, kind)
    assert found[0].startswith(others)
    assert found[1].startswith(own)


def test_a_length_is_of_a_function() -> None:
    with pytest.raises(ConfigError, match="length_fn is list; give a function of a sample"):
        StreamScheduler(["a"], [1], global_batch=2)  # type: ignore[arg-type]


def test_bad_arguments() -> None:
    for words, named in (
        ({"global_batch": 0}, "global_batch = 0"),
        ({"prefetch": 3}, "raise policy.prefetch to at least 4"),
        ({"global_batch": 1}, "global_batch = 1 is smaller than world_size = 2"),
        ({"speeds": (1,)}, "speeds of 1 ranks, but there are 2"),
        ({"cost": {"kind": "calibrated", "path": "no"}}, "calibration no: "),
    ):
        with pytest.raises(ConfigError, match=named):
            stream(0, 2, **words)
    with pytest.raises(ConfigError, match="there is none of so many processes; call torch"):
        next(iter(stream(0, 2)))
    other = stream(0, 1, cost={"kind": "padded_tokens", "alpha": 3.0})
    with pytest.raises(ConfigError, match=r"cost\.alpha = 0\.0, here 3\.0"):
        other.load_state_dict(stream().state_dict())
    state = stream().state_dict()
    for broken, named in (
        ({"epoch": -1}, "load_state_dict: got -1"),
        ({"step": 1.5}, "load_state_dict: got 1.5"),
        ({"step": 2}, "no stand_in after 2 steps"),
    ):
        with pytest.raises(ConfigError, match=named):
            stream().load_state_dict(state | broken)
