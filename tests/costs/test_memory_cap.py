"""Memory caps: how many samples fit, checked by counting, and plans in which every micro-batch fits."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpsched.config import RunConfig, parse
from ddpsched.costs.calibration import Calibration, Identity, Residuals, Seconds
from ddpsched.costs.memory_cap import Cap, MemoryModel, probed
from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.data.lengths import KnownLengths
from ddpsched.errors import InfeasibleError
from ddpsched.exchange import LocalExchange
from ddpsched.planning.planner import plan_steps
from ddpsched.step_plan import Microbatch, StepPlan

MEMORY = MemoryModel(base=1000, per_sample=3, per_token=10, per_square=0.25)
FILLING: dict[str, dict[str, Any]] = {
    "token_budget": {"kind": "token_budget", "max_tokens_for_batch": 200},
    "token_budget, real": {"kind": "token_budget", "max_tokens_for_batch": 200, "budget": "real"},
    "token_budget, same shape": {"kind": "token_budget", "max_tokens_for_batch": 200, "same_shape": True},
    "bins": {"kind": "bins", "median_batch": 6},
    "pool": {"kind": "pool", "max_tokens_for_batch": 200},
    "pool, first": {"kind": "pool", "max_tokens_for_batch": 200, "strategy": "prefer_first"},
    "pool, packed": {"kind": "pool", "max_tokens_for_batch": 200, "sequence_packing": True},
}
POLICIES = [("static", 1), ("minmax", 1), ("balanced", 1), ("balanced", 4), ("packed", 1), *((k, 1) for k in FILLING)]


@given(st.integers(0, 20_000), st.lists(st.integers(1, 100), min_size=1, max_size=30))
def test_limit_and_prefix_by_counting_up(budget: int, lengths: list[int]) -> None:
    cap, given = Cap(budget - MEMORY.fixed, MEMORY.sample), np.array(lengths)
    for length, most in zip(lengths, cap.limit(given).tolist(), strict=True):
        fitting = 0
        while MEMORY.bytes(fitting + 1, length) <= budget:
            fitting += 1
        assert max(0, most) == fitting
    prefix = 0
    while prefix < len(lengths) and MEMORY.bytes(prefix + 1, max(lengths[: prefix + 1])) <= budget:
        prefix += 1
    assert cap.prefix(given) == prefix


@given(st.integers(1, 12), st.lists(st.integers(1, 50), min_size=1, max_size=30))
def test_a_probed_cap_holds_as_many_tokens_and_no_more_samples(count: int, lengths: list[int]) -> None:
    """A probe at length 50 allows no more samples of a shorter length; longer ones never occur."""
    cap = probed(count, 50)
    assert cap.limit(np.array(lengths)).tolist() == [count] * len(lengths)
    assert cap.prefix(np.array(lengths)) == min(count, len(lengths))


@pytest.fixture(scope="module")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write MEMORY as `ddpsched calibrate` would."""
    off = Residuals(train_mean=0, train_max=0, held_out_mean=0, held_out_max=0, worst_underestimate=0)
    result = Calibration(
        identity=Identity(model="tiny", max_length=128), versions={}, seconds_residuals=off, bytes_residuals=off,
        seconds=Seconds(alpha=1e-3, beta=1e-5, gamma=0, delta=0, floor=0), points=[],
        bytes=MemoryModel(base=1000, per_sample=3, per_token=10, per_square=0.25),
    )  # fmt: skip
    path = tmp_path_factory.mktemp("calibration") / "calibration.json"
    path.write_text(result.model_dump_json(), encoding="utf-8")
    return str(path)


def config_of(calibration: str, policy: str, most: int = 1, **values: Any) -> RunConfig:
    options = {"minmax": {"prefetch": 16}, "balanced": {"max_microbatches": most}}
    table = FILLING.get(policy, {"kind": policy, **options.get(policy, {})})
    memory = {"path": calibration, "budget_bytes": 1}
    return parse({"epochs": 1, "global_batch": 12, "world_size": 3, "policy": table, "memory": memory, **values})


def plans_of(config: RunConfig, lengths: Any, budgets: list[int]) -> list[StepPlan]:
    return list(plan_steps(config.plan_spec(budgets), KnownLengths(lengths), LocalExchange(config.world_size)))


def need(micro: Microbatch, lengths: Any) -> int:
    """Return the bytes at the peak."""
    mine = lengths[micro.ids]
    if micro.packed:
        return MEMORY.fixed + int(MEMORY.sample(mine).sum())
    return int(MEMORY.bytes(len(mine), micro.padded_length(mine)))


def check(plans: list[StepPlan], lengths: Any, budgets: list[int], most: int) -> None:
    """Check that each sample runs once, and that each micro-batch fits its rank's memory."""
    assert Counter(i for plan in plans for i in plan.ids.tolist()) == Counter(range(len(lengths)))
    for plan in plans:
        for micros, budget in zip(plan.ranks, budgets, strict=True):
            for micro in micros:
                assert need(micro, lengths) <= budget
            assert len(micros) <= most or any(micro.packed for micro in micros)


@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 10**6),
    arm=st.sampled_from(POLICIES),
    tight=st.floats(0.8, 6),
    uneven=st.lists(st.sampled_from([1, 1.5, 3]), min_size=3, max_size=3),
    alike=st.booleans(),
)
def test_no_micro_batch_is_over_its_ranks_memory(
    calibration: str, seed: int, arm: tuple[str, int], tight: float, uneven: list[float], alike: bool
) -> None:
    """``tight`` draws budgets in longest samples, so that some batches do not fit at all."""
    lengths = sst2_lengths(50, np.random.default_rng(seed))
    room = tight * int(MEMORY.sample(lengths.max()))
    budgets = [MEMORY.fixed + round(room * (1 if alike else share)) for share in uneven]
    config = config_of(calibration, *arm)
    try:
        plans = plans_of(config, lengths, budgets)
    except InfeasibleError:
        fits = [budget >= MEMORY.bytes(4, lengths.max()) for budget in budgets]
        assert not all(fits), "four of the longest fit on every rank, so any split into fours does"
        return
    check(plans, lengths, budgets, arm[1])


@pytest.mark.parametrize(("policy", "most"), POLICIES)
def test_tight_caps_bind_and_are_obeyed(calibration: str, policy: str, most: int) -> None:
    """A cap below what uncapped plans need changes the plans, not the samples; static is refused."""
    lengths = sst2_lengths(300, np.random.default_rng(0))
    config = config_of(calibration, policy, most, cost={"alpha": 200.0 if most > 1 else 0.0})
    free = list(plan_steps(config.plan_spec(), KnownLengths(lengths), LocalExchange(3)))
    peak = max(need(micro, lengths) for plan in free for micros in plan.ranks for micro in micros)
    check(plans_of(config, lengths, [peak] * 3), lengths, [peak] * 3, most)
    tight = [MEMORY.fixed + round(0.97 * (peak - MEMORY.fixed))] * 3
    with pytest.raises(AssertionError):
        check(free, lengths, tight, most)
    if policy == "static":
        with pytest.raises(InfeasibleError, match=r"static gives each rank 4 of 12 samples, but memory allows rank"):
            plans_of(config, lengths, tight)
        return
    plans = plans_of(config, lengths, tight)
    check(plans, lengths, tight, most)
    if policy == "packed":
        assert max(len(micros) for plan in plans for micros in plan.ranks) > 1, "a rank needs several rows"


@pytest.mark.parametrize(("policy", "most"), [("minmax", 1), ("balanced", 1), ("balanced", 4), ("packed", 1)])
def test_each_rank_has_its_own_cap(calibration: str, policy: str, most: int) -> None:
    """The ranks have room for 2, 5 and 12 of the longest samples."""
    budgets = [MEMORY.fixed + count * int(MEMORY.sample(20)) for count in (2, 5, 12)]
    config = config_of(calibration, policy, most)
    for lengths in (np.full(300, 20), np.clip(sst2_lengths(300, np.random.default_rng(1)), 3, 20)):
        plans = plans_of(config, lengths, budgets)
        check(plans, lengths, budgets, most)
        if policy == "minmax" or (policy, most) == ("balanced", 1):
            usual, _ = Counter(tuple(plan.counts.tolist()) for plan in plans).most_common(1)[0]
            assert lengths.min() < 20 or usual == (2, 5, 5)
            with pytest.raises(AssertionError):
                check(plans, lengths, budgets[::-1], most)


@pytest.mark.parametrize(("policy", "most"), [*POLICIES])
def test_one_sample_alone_is_over(calibration: str, policy: str, most: int) -> None:
    """Only the last sample does not fit; it is found and named when its step is planned."""
    lengths = np.array([5] * 59 + [90])
    budgets = [int(MEMORY.bytes(1, 90)) - 1] * 3
    config = config_of(calibration, policy, most, order={"kind": "sequential"})
    named = "static gives each rank" if policy == "static" else "alone needs more memory"
    with pytest.raises(InfeasibleError, match=rf"{named}.*memory\.budget_bytes"):
        plans_of(config, lengths, budgets)
    enough = [int(MEMORY.bytes(4, 90))] * 3
    check(plans_of(config, lengths, enough), lengths, enough, most)


@pytest.mark.parametrize(("policy", "most", "fitting"), [("static", 1, 3), ("minmax", 1, 3), ("balanced", 4, 0.99)])
def test_the_batch_cannot_be_reached(calibration: str, policy: str, most: int, fitting: float) -> None:
    """Twelve samples of one length do not fit three ranks that hold too few each."""
    lengths = np.full(60, 30)
    budgets = [MEMORY.fixed + int(fitting * int(MEMORY.sample(30)))] * 3
    with pytest.raises(InfeasibleError, match=r"memory|12"):
        plans_of(config_of(calibration, policy, most), lengths, budgets)
    enough = [MEMORY.fixed + (4 if most == 1 else 1) * int(MEMORY.sample(30))] * 3
    check(plans_of(config_of(calibration, policy, most), lengths, enough), lengths, enough, most)


def test_a_budget_below_the_model_itself(calibration: str) -> None:
    for policy, most in POLICIES:
        with pytest.raises(InfeasibleError, match="memory"):
            plans_of(config_of(calibration, policy, most), [5] * 30, [MEMORY.fixed // 2] * 3)


def test_what_one_rank_cannot_hold_goes_to_another(calibration: str) -> None:
    """One roomy rank takes every long sample; static cannot move them and is refused."""
    lengths = np.random.default_rng(2).permutation([5] * 50 + [60] * 10)
    budgets = [int(MEMORY.bytes(8, 5)), int(MEMORY.bytes(8, 5)), int(MEMORY.bytes(8, 60))]
    for policy, most in (("balanced", 1), ("balanced", 4), ("packed", 1)):
        plans = plans_of(config_of(calibration, policy, most), lengths, budgets)
        check(plans, lengths, budgets, most)
    with pytest.raises(InfeasibleError, match="static"):
        plans_of(config_of(calibration, "static"), lengths, budgets)


def test_unlike_ranks_need_a_cost_that_adds_up(calibration: str) -> None:
    config = config_of(calibration, "balanced", cost={"kind": "padded_tokens_squared"})
    alike = [int(MEMORY.bytes(12, 20))] * 3
    check(plans_of(config, np.full(60, 20), alike), np.full(60, 20), alike, 1)
    with pytest.raises((InfeasibleError, ValueError), match="padded_tokens"):
        plans_of(config, np.full(60, 20), [alike[0], alike[0], 2 * alike[0]])
