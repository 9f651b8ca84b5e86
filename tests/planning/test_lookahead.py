"""Samples that move between neighbouring steps: none is lost, step sizes stay, and steps get faster."""

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
from ddpsched.planning.steps.lookahead import regroup
from ddpsched.step_plan import StepPlan


def lasts(weights: Any, steps: list[Any], ranks: int) -> Any:
    """Return the least time of each step: its longest sample, or its share of the work."""
    return np.array([max(weights[ids].max(), weights[ids].sum() / ranks) for ids in steps])


def in_turn(sizes: list[int]) -> list[Any]:
    return np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])


@settings(deadline=None, max_examples=200)
@given(
    sizes=st.one_of(
        st.lists(st.integers(1, 12), min_size=1, max_size=5),
        st.tuples(st.integers(1, 12), st.integers(1, 5)).map(lambda pair: [pair[0]] * pair[1]),
    ),
    ranks=st.integers(1, 6),
    strata=st.booleans(),
    seed=st.integers(0, 10**6),
    spread=st.sampled_from([0.0, 0.5, 2.0]),
)
def test_each_sample_in_one_step_and_sizes_kept(
    sizes: list[int], ranks: int, strata: bool, seed: int, spread: float
) -> None:
    weights = np.random.default_rng(seed).lognormal(2, spread, sum(sizes)).astype(np.int64) + 1
    before = weights.copy()
    steps = regroup(weights, sizes, ranks, strata)
    assert [len(ids) for ids in steps] == sizes
    assert sorted(np.concatenate(steps).tolist()) == list(range(len(weights)))
    assert (weights == before).all()
    again = regroup(weights, sizes, ranks, strata)
    assert all((a == b).all() for a, b in zip(steps, again, strict=True)), "every rank finds the same"
    if not strata:
        assert (lasts(weights, steps, ranks) <= lasts(weights, in_turn(sizes), ranks)).all(), "a step waits longer"
    if len(sizes) == 1:
        assert steps[0].tolist() == list(range(len(weights)))


@pytest.mark.parametrize("strata", [False, True])
def test_of_a_heavy_tail_long_samples_share_steps(strata: bool) -> None:
    rng, saved = np.random.default_rng(0), []
    for _ in range(40):
        weights = np.clip(rng.pareto(1.3, 8 * 32) * 10, 1, 4000).astype(np.int64) + 1
        before = lasts(weights, in_turn([32] * 8), 8)
        after = lasts(weights, regroup(weights, [32] * 8, 8, strata), 8)
        assert strata or (after <= before).all(), "a step takes no more than fits beside its longest sample"
        saved.append(after.sum() / before.sum())
    assert max(saved) <= 1
    assert np.mean(saved) < 0.9


def test_nothing_moves_where_no_step_waits_for_its_longest() -> None:
    weights = np.random.default_rng(1).integers(10, 20, 64)
    steps = regroup(weights, [16] * 4, 4, in_strata=False)
    assert [sorted(ids.tolist()) for ids in steps] == [ids.tolist() for ids in in_turn([16] * 4)]


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
