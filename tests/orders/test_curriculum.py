"""Orders of rising difficulty: globally sorted, paced, reshuffled, by shard; from lengths or a file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpsched.config import RunConfig, parse
from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.data.lengths import KnownLengths
from ddpsched.data.order_file import About, OrderedWriter
from ddpsched.errors import ConfigError, DataError
from ddpsched.exchange import LocalExchange
from ddpsched.orders.config import OrderConfig
from ddpsched.orders.curriculum import PACES, open_samples
from ddpsched.planning.planner import plan_steps

LENGTHS = sst2_lengths(2000, np.random.default_rng(0))


def config_of(world_size: int = 1, policy: Any = None, **order: Any) -> RunConfig:
    return parse(
        {
            "epochs": 1,
            "global_batch": 32,
            "world_size": world_size,
            "policy": policy or {"kind": "static"},
            "order": {"kind": "curriculum", **order},
        }
    )


def order_of(lengths: Any = LENGTHS, epoch: int = 0, world_size: int = 1, **order: Any) -> np.ndarray:
    return (
        config_of(world_size, **order).plan_spec().epoch_order(KnownLengths(np.array(lengths, dtype=np.int64)), epoch)
    )


def write(path: Path, ids: Any, data: str = "file x") -> str:
    ids = np.array(ids, dtype=np.int64)
    writer = OrderedWriter(
        path, len(ids), [np.dtype(np.float64), np.dtype(np.int64)], About(("loss",), data, "somewhere")
    )
    writer.begin()
    writer.finish(writer.write(0, [np.arange(len(ids)) / 2, ids]))
    return str(path)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=60), st.integers(1, 4))
def test_easiest_first_equals_by_id(lengths: list[int], world_size: int) -> None:
    order = order_of(lengths, world_size=world_size)
    assert order.tolist() == sorted(range(len(lengths)), key=lambda i: (lengths[i], i))


PACED = [{"pacing": pacing, "start": start} for pacing in PACES for start in (0.05, 0.5, 1.0)]


@pytest.mark.parametrize("order", [*PACED, {"window": 64}, {"kind": "curriculum_local"}], ids=str)
@pytest.mark.parametrize("size", [1, 31, 33, 500])
def test_every_sample_once(order: dict[str, Any], size: int) -> None:
    ids = order_of(LENGTHS[:size], world_size=4, **order)
    assert sorted(ids.tolist()) == list(range(size))
    assert ids.tolist() == order_of(LENGTHS[:size], world_size=4, **order).tolist()


@pytest.mark.parametrize("order", [{}, {"window": 100}, *PACED], ids=str)
def test_the_order_does_not_depend_on_the_number_of_ranks(order: dict[str, Any]) -> None:
    first, *others = (order_of(world_size=size, **order).tolist() for size in (1, 2, 4, 8))
    assert all(other == first for other in others)


@pytest.mark.parametrize("pacing", list(PACES))
def test_pacing_opens_the_easiest_first(pacing: str) -> None:
    """No step has a sample beyond the open share; after ``over`` of the epoch all samples are open."""
    config = OrderConfig(kind="curriculum", pacing=pacing, start=0.2, over=0.6)  # type: ignore[arg-type]
    opened = open_samples(config, len(LENGTHS), 32)
    steps = len(opened)
    assert opened[0] == 400
    assert opened == sorted(opened)
    assert all(count == 2000 for step, count in enumerate(opened) if step >= 0.6 * steps)
    assert any(count < 2000 for count in opened[: int(0.4 * steps)])
    easiest = np.argsort(LENGTHS, kind="stable")
    place = np.empty(2000, dtype=np.int64)
    place[easiest] = np.arange(2000)
    order = order_of(pacing=pacing, start=0.2, over=0.6)
    for step, count in enumerate(opened):
        assert place[order[step * 32 : (step + 1) * 32]].max() < count
    first = place[order[:32]]
    assert first.max() > 150, "drawn from all that is open, not from its beginning"


def test_paces_as_published() -> None:
    order = OrderConfig(kind="curriculum", pacing="root", start=0.1, stairs=5)
    assert PACES["root"](0.5, order) == pytest.approx(np.sqrt(0.5 * (1 - 0.1**2) + 0.1**2))
    assert PACES["linear"](0.5, order) == pytest.approx(0.55)
    stairs = [PACES["step"](x, order) for x in (0, 0.19, 0.2, 0.99, 1.0)]
    assert stairs == pytest.approx([0.1, 0.1, 0.28, 0.82, 1.0])


def test_epochs() -> None:
    """Each epoch is sorted, and reshuffled within windows; once all samples are open, it is shuffled."""
    assert order_of(epoch=1).tolist() == order_of().tolist()
    assert order_of(epoch=1, window=50).tolist() != order_of(window=50).tolist()
    paced = [order_of(epoch=epoch, pacing="linear") for epoch in range(3)]
    assert len({tuple(order.tolist()) for order in paced}) == 3
    means = [LENGTHS[order[:200]].mean() for order in paced]
    assert means[0] < 0.7 * LENGTHS.mean() < min(means[1:])


def test_windows_keep_their_samples() -> None:
    sorted_, reshuffled = order_of(), order_of(window=50)
    for start in range(0, 2000, 50):
        assert set(reshuffled[start : start + 50]) == set(sorted_[start : start + 50])
    assert reshuffled.tolist() != sorted_.tolist()


def shares(world_size: int, **order: Any) -> list[list[np.ndarray]]:
    """Return the ids of each rank in each step, dealt by static."""
    plans = plan_steps(config_of(world_size, **order).plan_spec(), KnownLengths(LENGTHS), LocalExchange(world_size))
    return [[plan.rank_ids(rank) for rank in range(world_size)] for plan in plans]


def test_static_deals_neighbours_to_different_ranks() -> None:
    for step in shares(4)[:-1]:
        means = [LENGTHS[ids].mean() for ids in step]
        assert max(means) - min(means) <= np.ptp(LENGTHS[np.concatenate(step)]) / 4 + 1
        assert [len(ids) for ids in step] == [8] * 4
    order = order_of()
    assert shares(4)[3][1].tolist() == order[96:128][1::4].tolist()


def test_local_shards() -> None:
    """Each rank sees only its rows, easiest first; a step's samples depend on the number of ranks."""
    for world_size in (2, 4):
        steps = shares(world_size, kind="curriculum_local")
        for rank in range(world_size):
            ids = np.concatenate([step[rank] for step in steps[:-1]])
            low, high = rank * 2000 // world_size, (rank + 1) * 2000 // world_size
            assert ids.min() >= low
            assert ids.max() < high
            assert (np.diff(LENGTHS[ids]) >= 0).all()
    two, four = (order_of(world_size=size, kind="curriculum_local") for size in (2, 4))
    assert set(two[:32].tolist()) != set(four[:32].tolist())
    assert order_of(world_size=1, kind="curriculum_local").tolist() == order_of().tolist()


def test_shards_that_differ_make_ranks_unlike() -> None:
    """On sorted data, local shards are unbalanced: rank 1's easiest sample is as long as rank 0's hardest."""
    lengths = np.sort(LENGTHS)

    def imbalance(kind: str) -> float:
        plans = plan_steps(config_of(2, kind=kind).plan_spec(), KnownLengths(lengths), LocalExchange(2))
        costs = np.array([plan.predicted_cost for plan in plans])
        return float((costs.max(axis=1) / costs.mean(axis=1)).mean())

    assert imbalance("curriculum") < 1.02 < 1.3 < imbalance("curriculum_local")


def test_an_order_from_a_file(tmp_path: Path) -> None:
    ids = np.random.default_rng(1).permutation(2000)
    path = write(tmp_path / "order.npy", ids)
    assert order_of(path=path).tolist() == ids.tolist()
    with pytest.raises(DataError, match="orders 2000 samples, but there are 1999"):
        order_of(LENGTHS[:1999], path=path)
    twice = write(tmp_path / "twice.npy", [0, 1, 1])
    with pytest.raises(DataError, match="write it again"):
        order_of([1, 2, 3], path=twice)


def test_a_file_orders_the_rows_that_are_left(tmp_path: Path) -> None:
    """Samples keep their row numbers, whatever was held out before them."""
    source = KnownLengths(np.array([5, 6, 7]))
    source.rows = np.array([1, 4, 5])
    path = write(tmp_path / "order.npy", [5, 0, 4, 3, 2, 1])
    assert config_of(path=path).plan_spec().epoch_order(source, 0).tolist() == [2, 1, 0]
    source.rows = np.array([1, 4, 9])
    with pytest.raises(DataError, match="of the 3 samples it orders 2 once"):
        config_of(path=path).plan_spec().epoch_order(source, 0)


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ({"kind": "shuffled", "path": "x.npy"}, "path = 'x.npy', a file of `ddpsched sort`, belongs to"),
        ({"kind": "shuffled", "window": 5}, "window belong to kind = 'curriculum'"),
        ({"kind": "curriculum_local", "pacing": "root"}, "pacing belong to kind = 'curriculum'"),
        ({"start": 0.3}, "start needs pacing, .*; set pacing = 'linear', 'root' or 'step'"),
        ({"pacing": "linear", "window": 5}, "give one of the two"),
        ({"pacing": "linear", "stairs": 4}, "stairs belongs to pacing = 'step'"),
        ({"pacing": "linear", "start": 0.0}, "greater than 0"),
        ({"pacing": "linear", "over": 1.5}, "less than or equal to 1"),
        ({"pacing": "cubic"}, "'linear', 'root' or 'step'"),
    ],
)
def test_options_that_do_not_belong(order: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config_of(**order)


def test_data_that_has_no_such_order() -> None:
    values = {"steps": 1, "order": {"kind": "curriculum"}, "policy": {"kind": "minmax"}}
    with pytest.raises(ConfigError, match=r"sorts by length; use data.lengths = 'known'"):
        parse({**values, "data": {"lengths": "online"}})
    parse({**values, "data": {"lengths": "online"}, "order": {"kind": "curriculum", "path": "x.npy"}})
    with pytest.raises(ConfigError, match="cuts all documents into slices"):
        parse({**values, "data": {"concatenate": True}, "model": {"task": "causal_lm"}})
