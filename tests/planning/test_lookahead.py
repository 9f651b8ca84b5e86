"""Samples that move between neighbouring steps: none is lost, step sizes stay, and steps get faster."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpsched.compare import Question, compare
from ddpsched.config import RunConfig, parse
from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.data.lengths import KnownLengths
from ddpsched.exchange import LocalExchange
from ddpsched.planning.planner import plan_steps
from ddpsched.planning.solvers.partition.min_max_split import split_line
from ddpsched.planning.solvers.partition.sorted_batch import falling, line_of
from ddpsched.planning.steps.lookahead import regroup, window_bound
from ddpsched.step_plan import StepPlan


def lasts(weights: Any, steps: list[Any], ranks: int) -> Any:
    """Return the least time of each step: its longest sample, or its share of the work."""
    return np.array([max(weights[ids].max(), weights[ids].sum() / ranks) for ids in steps])


def in_turn(steps: int, size: int) -> list[Any]:
    return np.split(np.arange(steps * size), steps)


@settings(deadline=None, max_examples=200)
@given(
    steps=st.integers(1, 6),
    size=st.integers(1, 12),
    ranks=st.integers(1, 6),
    runs=st.booleans(),
    seed=st.integers(0, 10**6),
    spread=st.sampled_from([0.0, 0.5, 2.0]),
)
def test_each_sample_in_one_step_and_sizes_kept(
    steps: int, size: int, ranks: int, runs: bool, seed: int, spread: float
) -> None:
    weights = np.random.default_rng(seed).lognormal(2, spread, steps * size).astype(np.int64) + 1
    before = weights.copy()
    dealt = regroup(weights, size, ranks, runs)
    assert [len(ids) for ids in dealt] == [size] * steps
    assert sorted(np.concatenate(dealt).tolist()) == list(range(len(weights)))
    assert (weights == before).all()
    again = regroup(weights, size, ranks, runs)
    assert all((a == b).all() for a, b in zip(dealt, again, strict=True)), "every rank finds the same"
    assert lasts(weights, dealt, ranks).sum() >= window_bound(weights, size, ranks) - 1e-9
    if steps == 1:
        assert dealt[0].tolist() == list(range(len(weights)))


@settings(deadline=None, max_examples=60)
@given(weights=st.lists(st.integers(1, 30), min_size=4, max_size=6), ranks=st.integers(1, 3))
def test_the_bound_of_a_window_is_below_every_way_to_deal_it(weights: list[int], ranks: int) -> None:
    even = np.array(weights[: len(weights) // 2 * 2])
    size = len(even) // 2
    least = np.inf
    for chosen in combinations(range(len(even)), size):
        rest = [place for place in range(len(even)) if place not in chosen]
        least = min(least, lasts(even, [np.array(chosen), np.array(rest)], ranks).sum())
    assert window_bound(even, size, ranks) <= least + 1e-9


LAWS = {
    "pareto": lambda rng, size: np.clip(rng.pareto(1.3, size) * 10, 1, 4000).astype(np.int64) + 1,
    "log-normal": lambda rng, size: np.minimum(rng.lognormal(4, 1.5, size).astype(np.int64) + 3, 20_000),
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("ahead", "gap"), [(4, 0.02), (32, 0.02)])
def test_of_a_long_tail_little_is_left_above_the_bound(law: str, ahead: int, gap: float) -> None:
    rng, taken, bound, drawn = np.random.default_rng(0), 0.0, 0.0, 0.0
    for _ in range(8):
        weights = LAWS[law](rng, ahead * 64)
        taken += sum(longest_of_eight(weights[ids]) for ids in regroup(weights, 64, 8, in_runs=False))
        drawn += sum(longest_of_eight(weights[ids]) for ids in in_turn(ahead, 64))
        bound += window_bound(weights, 64, 8)
    assert taken <= (1 + gap) * bound
    assert taken < 0.9 * drawn


def longest_of_eight(weights: Any) -> int:
    """Return the largest of eight sums, the longest first to the smallest."""
    sums = [0] * 8
    for weight in sorted(weights.tolist(), reverse=True):
        sums[sums.index(min(sums))] += weight
    return max(sums)


def test_runs_of_neighbours_have_little_padding() -> None:
    rng, before, after = np.random.default_rng(0), 0, 0
    for _ in range(8):
        weights = LAWS["log-normal"](rng, 32 * 64)
        for steps, total in ((in_turn(32, 64), "before"), (regroup(weights, 64, 8, in_runs=True), "after")):
            cost = sum(min_max_split(line_of(weights[ids][falling(weights[ids])], np.multiply), 8) for ids in steps)
            before, after = (before + cost, after) if total == "before" else (before, after + cost)
    assert after < 0.65 * before


def min_max_split(line: Any, ranks: int) -> int:
    spans, _ = split_line(line, ranks)
    return max(line.cost_of(start, end) for start, end in spans)


def test_nothing_moves_where_no_step_waits_for_its_longest() -> None:
    weights = np.random.default_rng(1).integers(10, 20, 64)
    steps = regroup(weights, 16, 4, in_runs=False)
    assert [ids.tolist() for ids in steps] == [ids.tolist() for ids in in_turn(4, 16)]


def config(policy: str, ahead: int, most: int = 1, **values: Any) -> RunConfig:
    table = {"kind": policy, "lookahead": ahead, **({"max_microbatches": most} if policy == "balanced" else {})}
    return parse({"epochs": 1, "global_batch": 32, "world_size": 4, "policy": table, **values})


def plans(lengths: Any, config: RunConfig) -> list[StepPlan]:
    return list(plan_steps(config.plan_spec(), KnownLengths(lengths), LocalExchange(config.world_size)))


@pytest.mark.parametrize(("policy", "most"), [("balanced", 1), ("balanced", 4), ("packed", 1)])
@pytest.mark.parametrize("size", [32 * 10 + 5, 32 * 8, 32 * 2 + 31, 7])
def test_samples_stay_among_w_steps_and_the_last_smaller_batch_is_kept(policy: str, most: int, size: int) -> None:
    lengths = sst2_lengths(size, np.random.default_rng(2))
    result = plans(lengths, config(policy, 4, most, order={"kind": "sequential"}))
    assert [plan.global_batch for plan in result] == [32] * (size // 32) + [size % 32] * (size % 32 > 0)
    for start in range(0, len(result), 4):
        pool = np.concatenate([plan.ids for plan in result[start : start + 4]])
        assert sorted(pool.tolist()) == list(range(32 * start, min(size, 32 * (start + 4))))
    if size % 32:
        assert sorted(result[-1].ids.tolist()) == list(range(size - size % 32, size))


def test_a_lookahead_of_one_is_none() -> None:
    lengths = sst2_lengths(300, np.random.default_rng(3))
    plain = parse({"epochs": 1, "global_batch": 32, "world_size": 4, "policy": {"kind": "balanced"}})
    one, four = ([p.digest for p in plans(lengths, config("balanced", ahead))] for ahead in (1, 4))
    assert one == [p.digest for p in plans(lengths, plain)]
    assert one != four


@pytest.mark.parametrize(("most", "gain"), [(1, 0.9), (4, 1.0)])
def test_a_lower_yardstick_for_a_small_order_bias(most: int, gain: float) -> None:
    lengths = sst2_lengths(6400, np.random.default_rng(4))
    question = Question(lengths, world_size=4, global_batch=32, max_microbatches=most)
    (one,) = compare(question, ["balanced"])
    (four,) = compare(Question(lengths, 4, 32, max_microbatches=most, lookahead=4), ["balanced"])
    assert one.figures is not None
    assert four.figures is not None
    assert four.figures.yardstick <= gain * one.figures.yardstick
    assert abs(one.figures.order_bias) < 0.02
    assert abs(four.figures.order_bias) < 0.1
    assert (four.figures.dropped, four.figures.repeated, four.figures.steps) == (0, 0, 200)
