"""Orders have each id once, drawn anew each epoch; length_grouped follows its definition and transformers."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpsched.config import parse
from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.data.lengths import KnownLengths
from ddpsched.errors import ConfigError


def order_of(kind: str, lengths: Any, epoch: int = 0, **values: Any) -> np.ndarray:
    config = parse(
        {
            "epochs": 1,
            "policy": {"kind": "static"},
            "world_size": 1,
            "order": {"kind": kind, **values.pop("order", {})},
            **values,
        }
    )
    return config.plan_spec().epoch_order(KnownLengths(np.array(lengths, dtype=np.int64)), epoch)


def test_an_order_is_drawn_once_and_nobody_can_change_it() -> None:
    first, again = order_of("shuffled", range(1, 50)), order_of("shuffled", range(1, 50))
    assert first is again
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 3
    assert order_of("shuffled", range(1, 50), seed=1).tolist() != first.tolist()


@given(
    st.sampled_from(["shuffled", "sequential", "length_grouped"]),
    st.lists(st.integers(1, 9), min_size=1, max_size=50),
    st.integers(1, 5),
)
def test_each_id_once_and_anew(kind: str, lengths: list[int], batch: int) -> None:
    first, again, next_epoch = (order_of(kind, lengths, epoch, global_batch=batch) for epoch in (0, 0, 1))
    assert sorted(first.tolist()) == list(range(len(lengths)))
    assert first.tolist() == again.tolist()
    if kind == "sequential":
        assert next_epoch.tolist() == first.tolist()


def test_epochs_and_seeds_differ() -> None:
    lengths = sst2_lengths(500, np.random.default_rng(0))
    for kind in ("shuffled", "length_grouped"):
        orders = [order_of(kind, lengths, epoch, seed=seed).tolist() for epoch in (0, 1) for seed in (0, 1)]
        assert len(set(map(tuple, orders))) == 4


def test_length_grouped_runs_fall_and_the_longest_comes_first() -> None:
    lengths = sst2_lengths(8000, np.random.default_rng(0))
    order = order_of("length_grouped", lengths, global_batch=16)
    assert lengths[order[0]] == lengths.max()
    runs = lengths[order][: 8000 // 800 * 800].reshape(-1, 800)  # 50 global batches sorted together
    falling = np.diff(runs, axis=1) <= 0
    # the longest sample was exchanged with the first of its run and of the first run
    assert (~falling).sum() <= 2
    assert (np.sort(order[:800]) != np.arange(800)).any(), "runs are drawn, not cut from the data"
    few = order_of("length_grouped", lengths[:100], global_batch=16)
    assert (np.diff(lengths[few[1:16]]) <= 0).all(), "few samples: runs of at least a batch"


def test_as_transformers_groups() -> None:
    """Neighbours' lengths are as close as under transformers' sampler."""
    torch = pytest.importorskip("torch")
    from transformers.trainer_pt_utils import LengthGroupedSampler

    lengths = sst2_lengths(6000, np.random.default_rng(0))
    sampler = LengthGroupedSampler(32, lengths=lengths.tolist(), generator=torch.Generator().manual_seed(0))
    waste = []
    for order in (
        np.array(list(sampler)),
        order_of("length_grouped", lengths),
        order_of("shuffled", lengths),
    ):
        batches = lengths[order][: 6000 // 32 * 32].reshape(-1, 32)
        waste.append(1 - batches.sum() / (32 * batches.max(axis=1)).sum())
    assert waste[0] == pytest.approx(waste[1], abs=0.01)
    assert waste[2] > waste[1] + 0.3


def test_needs_every_length() -> None:
    with pytest.raises(ConfigError, match="sorts by length"):
        parse(
            {
                "epochs": 1,
                "order": {"kind": "length_grouped"},
                "data": {"lengths": "online"},
                "policy": {"kind": "static"},
            }
        )
