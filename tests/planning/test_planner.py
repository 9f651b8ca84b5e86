"""The stream of plans: every id once per epoch, equal on every rank, optimal wherever claimed."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from time import sleep
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpsched.config import RunConfig, parse
from ddpsched.costs.rank_speed import Speed
from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.data.lengths import KnownLengths
from ddpsched.errors import ConfigError, InfeasibleError, PlanMismatch
from ddpsched.exchange import LocalExchange, Messages
from ddpsched.planning.plan_spec import PlanSpec
from ddpsched.planning.planner import PrefetchedPlans, num_steps, plan_steps
from ddpsched.planning.policies.static import Static
from ddpsched.step_plan import Microbatch, StepPlan

POLICIES = ("static", "minmax", "balanced")


def config_of(policy: str, **values: Any) -> RunConfig:
    prefetch = values.pop("prefetch", 16)
    table = {"kind": policy, **({"prefetch": prefetch} if policy == "minmax" else {})}
    return parse({"epochs": 1, "global_batch": 8, "world_size": 3, "policy": table, **values})


def plans_of(config: RunConfig, lengths: Any, caps: list[int] | None = None) -> list[StepPlan]:
    return list(plan_steps(config.plan_spec(caps), KnownLengths(lengths), LocalExchange(config.world_size)))


@settings(deadline=None)
@given(
    st.sampled_from(POLICIES),
    st.lists(st.integers(1, 60), min_size=1, max_size=70),
    st.integers(1, 5),
    st.integers(0, 6),
    st.integers(1, 3),
)
def test_every_epoch_holds_every_id_once(policy: str, lengths: list[int], world: int, extra: int, epochs: int) -> None:
    """Each id appears once, even if B and G do not divide the data set or exceed it."""
    batch = world + extra
    config = config_of(policy, world_size=world, global_batch=batch, epochs=epochs)
    plans = plans_of(config, lengths)
    assert [plan.step for plan in plans] == list(range(num_steps(config.plan_spec(), KnownLengths(lengths))))
    for epoch in range(epochs):
        of_epoch = [plan for plan in plans if plan.epoch == epoch]
        assert Counter(i for plan in of_epoch for i in plan.ids) == Counter(range(len(lengths)))
        assert {plan.global_batch for plan in of_epoch[:-1]} <= {batch}, "only the last step is smaller"
        for plan in of_epoch:
            full = plan.global_batch >= world and (policy != "minmax" or len(lengths) >= world * 16)
            assert not full or plan.counts.min() >= 1
    if epochs > 1 and len(lengths) > 8:
        orders = [[i for plan in plans if plan.epoch == e for i in plan.ids] for e in range(2)]
        assert orders[0] != orders[1], "every epoch is shuffled anew"


@pytest.mark.parametrize("policy", POLICIES)
def test_steps_end_a_run_and_cross_epochs(policy: str) -> None:
    plans = plans_of(config_of(policy, epochs=None, steps=7), np.arange(1, 21))
    assert [plan.epoch for plan in plans] == [0, 0, 0, 1, 1, 1, 2]


def test_static_and_balanced_draw_the_same_batches_and_minmax_the_same_order() -> None:
    lengths = sst2_lengths(500, np.random.default_rng(0))
    plans = {policy: plans_of(config_of(policy), lengths) for policy in POLICIES}
    for static, balanced in zip(plans["static"], plans["balanced"], strict=True):
        assert sorted(static.ids) == sorted(balanced.ids)
    first = {policy: set(result[0].ids.tolist()) for policy, result in plans.items()}
    window = set(range(500)) - set(i for plan in plans["minmax"][6:] for i in plan.ids.tolist())
    assert first["minmax"] <= window


def test_less_padded_work_on_the_largest_rank() -> None:
    lengths = sst2_lengths(4000, np.random.default_rng(1))
    work = {}
    for policy in POLICIES:
        plans = plans_of(config_of(policy, world_size=4, global_batch=32), lengths)
        work[policy] = sum(max(plan.predicted_cost or ()) for plan in plans) / (lengths.sum() / 4)
    assert 2.7 < work["static"] < 3.3
    assert 2.1 < work["minmax"] < 2.6
    assert 1.3 < work["balanced"] < 1.45


def test_predicted_cost_is_the_cost_of_what_is_run() -> None:
    lengths = sst2_lengths(300, np.random.default_rng(2))
    for policy in POLICIES:
        for plan in plans_of(config_of(policy), lengths):
            assert plan.predicted_cost is not None
            for rank, cost in enumerate(plan.predicted_cost):
                rank_lengths = lengths[plan.rank_ids(rank)]
                assert cost == (len(rank_lengths) * rank_lengths.max() if len(rank_lengths) else 0)
            if plan.lower_bound is not None:
                assert plan.status != "optimal" or max(plan.predicted_cost) == plan.lower_bound


def test_balanced_moves_the_heaviest_group_around() -> None:
    plans = plans_of(config_of("balanced", world_size=4, global_batch=32), sst2_lengths(4000, np.random.default_rng(3)))
    longest = [int(np.argmin(plan.counts)) for plan in plans]
    assert max(Counter(longest).values()) < 0.4 * len(plans)


class Tampered(LocalExchange):
    """Multiplies one rank's offered costs by ten."""

    def offer(self, rows: Messages) -> Messages:
        changed = rows.copy()
        changed[1, 4:] *= 10
        return changed


def test_what_a_rank_offers_changes_every_ranks_plan() -> None:
    lengths, config = sst2_lengths(500, np.random.default_rng(4)), config_of("minmax", world_size=3, global_batch=24)
    plain = plans_of(config, lengths)
    tampered = list(plan_steps(config.plan_spec(), KnownLengths(lengths), Tampered(3)))
    assert [plan.digest for plan in plain] != [plan.digest for plan in tampered]
    assert sum(plan.counts[1] for plan in tampered) < 0.5 * sum(plan.counts[1] for plan in plain)


def test_an_offer_of_another_step_is_found() -> None:
    class Stale(LocalExchange):
        def offer(self, rows: Messages) -> Messages:
            changed = rows.copy()
            changed[2, 2] += 1
            return changed

    with pytest.raises(PlanMismatch, match=r"ranks \[2\]"):
        list(plan_steps(config_of("minmax").plan_spec(), KnownLengths(np.arange(1, 50)), Stale(3)))


@pytest.mark.parametrize("policy", ["minmax", "balanced"])
def test_caps_bind(policy: str) -> None:
    lengths = sst2_lengths(200, np.random.default_rng(5))
    caps = [3, 3, 3]
    plans = plans_of(config_of(policy), lengths, caps)
    assert max(int(plan.counts.max()) for plan in plans) == 3
    assert Counter(i for plan in plans for i in plan.ids) == Counter(range(200))


def test_minmax_obeys_each_ranks_own_cap() -> None:
    plans = plans_of(config_of("minmax"), sst2_lengths(200, np.random.default_rng(6)), [1, 2, 8])
    assert np.array([plan.counts for plan in plans]).max(axis=0).tolist()[:2] == [1, 2]


@pytest.mark.parametrize("policy", POLICIES)
def test_caps_that_cannot_hold_the_batch(policy: str) -> None:
    with pytest.raises(InfeasibleError, match="8"):
        plans_of(config_of(policy), np.arange(1, 50), [2, 2, 2])


def test_digest_tells_order_rank_and_step_apart() -> None:
    def plan(*ranks: list[int], step: int = 0) -> StepPlan:
        return StepPlan(0, step, tuple((Microbatch(np.array(ids)),) for ids in ranks))

    digests = [p.digest for p in (plan([1, 2], [3]), plan([2, 1], [3]), plan([1], [2, 3]), plan([1, 2], [3], step=1))]
    assert len(set(digests)) == 4
    assert plan([1, 2], [3]).digest == digests[0]
    with pytest.raises(ValueError, match="planned twice"):
        plan([1, 2], [2])


def test_ahead_gives_the_same_plans_and_raises_what_planning_raised() -> None:
    config = config_of("minmax")
    lengths = KnownLengths(sst2_lengths(100, np.random.default_rng(7)))
    plain = [plan.digest for plan in plan_steps(config.plan_spec(), lengths, LocalExchange(3))]
    overlapped = list(PrefetchedPlans(plan_steps(config.plan_spec(), lengths, LocalExchange(3))))
    assert [plan.digest for plan in overlapped] == plain
    assert all(plan.times.wait_s is not None for plan in overlapped)
    with pytest.raises(InfeasibleError):
        list(PrefetchedPlans(plan_steps(config.plan_spec([1, 1, 1]), lengths, LocalExchange(3))))


def test_orders() -> None:
    plans = plans_of(config_of("static", order={"kind": "sequential"}), np.arange(1, 21))
    assert np.concatenate([plan.ids for plan in plans]).tolist() == list(range(20))
    one, two = (plans_of(config_of("static", seed=seed), np.arange(1, 21)) for seed in (1, 2))
    assert [p.digest for p in one] != [p.digest for p in two]
    assert [p.step for p in one] == [p.step for p in two]
    assert all(a.step + 1 == b.step for a, b in pairwise(one))


def speed_of(slowness_ppm: int) -> Speed:
    speed = Speed()
    speed.slowness_ppm = slowness_ppm
    return speed


@pytest.mark.parametrize("policy", ["minmax", "balanced", "packed"])
def test_what_a_rank_has_measured_of_itself_lightens_its_load(policy: str) -> None:
    """Rank 1 reports twice the slowness, so every rank plans its samples at twice the cost."""
    lengths = sst2_lengths(600, np.random.default_rng(7))
    cost = {"kind": "affine_quadratic", "beta": 1e-3}
    config = config_of(policy, world_size=3, global_batch=48, prefetch=32, cost={**cost, "online": True})
    speeds = [speed_of(ppm) for ppm in (10**6, 2 * 10**6, 10**6)]
    plans = list(plan_steps(config.plan_spec(), KnownLengths(lengths), LocalExchange(3), speeds))
    assert Counter(i for plan in plans for i in plan.ids) == Counter(range(600))
    work = np.zeros(3)
    for plan in plans:
        for rank in range(3):
            parts = [lengths[micro.ids] for micro in plan.ranks[rank]]
            work[rank] += sum(x.sum() if policy == "packed" else len(x) * x.max() for x in parts)
    assert work[1] < 0.65 * work[[0, 2]].mean()
    alike = [speed_of(ppm) for ppm in (10**6, 1_020_000, 10**6)]
    if policy != "minmax":  # within 5 %, batch policies plan for ranks that are alike
        plain = list(plan_steps(config.plan_spec(), KnownLengths(lengths), LocalExchange(3)))
        measured = list(plan_steps(config.plan_spec(), KnownLengths(lengths), LocalExchange(3), alike))
        assert [plan.digest for plan in plain] == [plan.digest for plan in measured]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"world_size": 0}, "world_size = 0: must be at least 1"),
        ({"global_batch": 0}, "global_batch = 0: must be at least 1"),
        ({"seed": -1}, "seed = -1: must be at least 0"),
        ({"epochs": 0}, "epochs = 0: must be at least 1"),
        ({"steps": -5}, "steps = -5: must be at least 1"),
        ({"caps": ()}, "caps of 0 ranks, world_size = 2; give one a rank"),
    ],
)
def test_a_spec_out_of_range(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        PlanSpec(**{"world_size": 2, "global_batch": 4, "policy": Static(), "epochs": 1, **changes})


def test_planning_beyond_a_turn_counts_as_the_next_steps_wait() -> None:
    """A planner that takes longer than a step costs as much where runs take turns as it does where they do not."""

    def slow() -> Iterator[StepPlan]:
        lengths = KnownLengths(sst2_lengths(100, np.random.default_rng(7)))
        for plan in plan_steps(config_of("balanced").plan_spec(), lengths, LocalExchange(3)):
            sleep(0.05)
            yield plan

    waits = {}
    for settles in (True, False):
        plans, found = PrefetchedPlans(slow()), []
        for plan in plans:
            found.append(plan.times.wait_s or 0.0)
            if settles:
                plans.settle()
            sleep(0.08)  # others' turns
        waits[settles] = found[1]
        plans.close()
    assert waits[True] >= 0.045
    assert waits[False] < 0.02, "and it would be hidden"
