"""The figures of a batching, compared with the same figures computed sample by sample."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpsched.costs.cost_model import CostModel
from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.planning.yardstick import Ruler, Yardstick

Steps = list[list[list[list[int]]]]  # step, rank, micro-batch, id
TOKENS = CostModel(0, 1, 0, scale=1)


def read(lengths: Any, ranks: int, epochs: list[Steps], cost: Any = TOKENS, **rest: Any) -> Yardstick:
    ruler = Ruler(np.asarray(lengths), ranks, cost, **rest)
    for steps in epochs:
        ruler.add_epoch([[[np.array(ids, dtype=np.int64) for ids in rank] for rank in step] for step in steps])
    return ruler.read()


def cost_by_hand(lengths: list[int], alpha: int, gamma: float, packed: bool) -> int:
    """Return the cost of one micro-batch, sample by sample."""
    paid = lengths if packed else [max(lengths)] * len(lengths)
    return alpha + sum(round(length + gamma * length**2) for length in paid)


def by_hand(lengths: list[int], ranks: int, epochs: list[Steps], alpha: int, gamma: float, packed: bool) -> Any:
    steps = [step for epoch in epochs for step in epoch]
    each = [
        [sum(cost_by_hand([lengths[i] for i in ids], alpha, gamma, packed) for ids in rank) for rank in step]
        for step in steps
    ]
    micros = [[lengths[i] for i in ids] for step in steps for rank in step for ids in rank]
    real = [length for micro in micros for length in micro]
    computed = sum(real) if packed else sum(len(micro) * max(micro) for micro in micros)
    counts = [Counter(i for step in epoch for rank in step for ids in rank for i in ids) for epoch in epochs]
    sizes = [[sum(len(ids) for rank in step for ids in rank) for step in epoch] for epoch in epochs]
    full = [n for epoch in sizes for n in epoch[:-1]] or [n for epoch in sizes for n in epoch]
    dropped = sum(len(lengths) - len(count) for count in counts) / len(epochs)
    repeated = sum(count.total() - len(count) for count in counts) / len(epochs)
    return {
        "yardstick": sum(map(max, each)) / (sum(round(n + gamma * n**2) for n in real) / ranks),
        "padding_efficiency": sum(real) / computed,
        "imbalance": sum(map(max, each)) / (sum(map(sum, each)) / ranks),
        "dropped": math.ceil(dropped),
        "repeated": math.ceil(repeated),
        "steps": len(steps) // len(epochs),
        "samples_cv": np.std(full) / np.mean(full),
        "microbatches": len(micros) / (len(steps) * ranks),
    }


def cut(rng: np.random.Generator, ids: Any, ranks: int) -> Steps:
    """Deal the ids into steps of one to eight and up to three micro-batches a rank; some ranks get none."""
    steps: Steps = []
    while len(ids):
        size = int(rng.integers(1, 9))
        step: list[list[list[int]]] = [[] for _ in range(ranks)]
        for run in np.array_split(ids[:size], rng.integers(1, 1 + min(size, len(ids), ranks * 3))):
            step[rng.integers(ranks)].append(run.tolist())
        steps.append(step)
        ids = ids[size:]
    return steps


@settings(deadline=None, max_examples=200)
@given(
    seed=st.integers(0, 10**6),
    ranks=st.integers(1, 4),
    epochs=st.integers(1, 3),
    alpha=st.sampled_from([0, 40]),
    gamma=st.sampled_from([0, 0.5]),
    packed=st.booleans(),
    whole=st.booleans(),
)
def test_as_by_hand(seed: int, ranks: int, epochs: int, alpha: int, gamma: float, packed: bool, whole: bool) -> None:
    """Whole epochs agree, and so do epochs drawn with replacement, which drop and repeat samples."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 60, int(rng.integers(2, 40))).tolist()
    order = [rng.permutation(len(lengths)) if whole else rng.integers(len(lengths), size=9) for _ in range(epochs)]
    steps = [cut(rng, ids, ranks) for ids in order]
    result = read(lengths, ranks, steps, CostModel(alpha, 1, gamma, scale=1), packed=packed)
    for name, value in by_hand(lengths, ranks, steps, alpha, gamma, packed).items():
        assert getattr(result, name) == pytest.approx(value), name
    sums = [[lengths[i] for rank in step for ids in rank for i in ids] for epoch in steps for step in epoch]
    assert result.order_bias == pytest.approx(icc(sums), nan_ok=True)
    assert whole == (result.dropped == 0) or not whole


def icc(classes: list[list[int]]) -> float:
    """Return ICC(1) by an analysis of variance in full: squares of deviations from means."""
    table = pd.DataFrame(
        [(number, value) for number, members in enumerate(classes) for value in members], columns=["c", "x"]
    )
    means, sizes = table.groupby("c").x.transform("mean"), table.groupby("c").size()
    k, n = len(sizes), len(table)
    if k < 2 or n == k:
        return float("nan")
    between = ((means - table.x.mean()) ** 2).sum() / (k - 1)
    within = ((table.x - means) ** 2).sum() / (n - k)
    n0 = (n - (sizes**2).sum() / n) / (k - 1)
    return 0.0 if between == within == 0 else (between - within) / (between + (n0 - 1) * within)


def test_order_bias_is_the_textbooks() -> None:
    """Shrout and Fleiss (1979), table 2: six targets, four judges; ICC(1,1) = .17."""
    ratings = [[9, 2, 5, 8], [6, 1, 3, 2], [8, 4, 6, 8], [7, 1, 2, 6], [10, 5, 6, 9], [6, 2, 4, 7]]
    steps = [[[[4 * target + judge for judge in range(4)]]] for target in range(6)]
    assert read(np.ravel(ratings), 1, [steps]).order_bias == pytest.approx(0.17, abs=0.005)


def test_order_bias_of_shuffled_and_of_sorted() -> None:
    lengths = sst2_lengths(6400, np.random.default_rng(0))

    def bias(lengths: Any, order: Any) -> float:
        return read(lengths, 1, [[[[ids.tolist()]] for ids in np.split(order, 200)]]).order_bias

    assert abs(bias(lengths, np.arange(6400))) < 0.01
    assert bias(lengths, np.argsort(lengths)) > 0.98
    alike = np.arange(6400).reshape(32, 200).T  # a short, a longer, ... sample in each step
    assert bias(np.arange(1, 6401), alike.ravel()) < -0.02


def test_perfect_is_one_and_static_by_hand_is_not() -> None:
    lengths = [4, 4, 2, 2, 2, 2]
    assert read(lengths, 2, [[[[[0, 1]], [[2, 3, 4, 5]]]]]).yardstick == 1
    mixed = read(lengths, 2, [[[[[0, 1, 2]], [[3, 4, 5]]]]])
    assert mixed.yardstick == pytest.approx(12 / 8)
    assert (mixed.padding_efficiency, mixed.imbalance) == (pytest.approx(16 / 18), pytest.approx(12 / 9))


def test_a_sample_dropped_in_one_epoch_of_two_is_not_hidden() -> None:
    full, short, twice = [[[[0, 1]]]], [[[[0]]]], [[[[0, 1, 1]]]]
    result = read([3, 4], 1, [full, short])
    assert (result.dropped, result.repeated) == (1, 0)
    assert read([3, 4], 1, [full, twice]).repeated == 1


def test_seconds_are_of_the_slowest_rank_and_apart_from_the_yardstick() -> None:
    time = CostModel(1.0, 0.5, 0, floor=4.0)
    steps = [[[[0, 1]], [[2]]], [[[3]], []]]
    result = read([4, 2, 2, 4], 2, [steps], time=time)
    assert result.step_seconds == pytest.approx(((1 + 0.5 * 8) + max(4, 1 + 0.5 * 4)) / 2)
    assert result.yardstick == pytest.approx((8 + 4) / (12 / 2))
    assert read([4, 2, 2, 4], 2, [steps]).step_seconds is None


def test_a_floor_is_paid_and_not_needed() -> None:
    cost = CostModel(0, 1, 0, scale=1, floor=10)
    for packed in (False, True):
        result = read([4, 4, 20], 2, [[[[[0, 1]], [[2]]], [[[0]], [[1]]]]], cost, packed=packed)
        assert result.yardstick == pytest.approx((20 + 10) / (36 / 2))
