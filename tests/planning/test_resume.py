"""The same stream continues from a position, and no step before it is planned again."""

import json
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpsched.config import RunConfig, parse
from ddpsched.costs.cost_model import Int
from ddpsched.costs.rank_speed import Speed
from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.data.lengths import KnownLengths
from ddpsched.errors import ConfigError
from ddpsched.exchange import LocalExchange, Messages
from ddpsched.planning.planner import PrefetchedPlans, plan_steps
from ddpsched.step_plan import Ids, Position, StepPlan

ARMS: dict[str, dict[str, Any]] = {
    "static": {"kind": "static"},
    "minmax": {"kind": "minmax", "prefetch": 8},
    "balanced": {"kind": "balanced"},
    "balanced, M = 3": {"kind": "balanced", "max_microbatches": 3},
    "packed": {"kind": "packed"},
    "balanced, W = 3": {"kind": "balanced", "lookahead": 3},
    "balanced, M = 2, W = 4": {"kind": "balanced", "max_microbatches": 2, "lookahead": 4},
    "packed, W = 2": {"kind": "packed", "lookahead": 2},
    "token_budget": {"kind": "token_budget", "max_tokens_for_batch": 66, "batches_per_optimizer_step": 2},
    "token_budget, real": {"kind": "token_budget", "max_tokens_for_batch": 66, "budget": "real"},
    "token_budget, same shape": {"kind": "token_budget", "max_tokens_for_batch": 66, "same_shape": True},
    "bins": {"kind": "bins", "median_batch": 3},
    "bins of each rank": {"kind": "bins", "median_batch": 3, "per_rank_bins": True, "batches_per_optimizer_step": 2},
    "bins, replaced": {"kind": "bins", "median_batch": 3, "replacement": True},
    "pool": {"kind": "pool", "max_tokens_for_batch": 40, "pool_size": 7},
    "pool, first": {"kind": "pool", "max_tokens_for_batch": 40, "pool_size": 7, "strategy": "prefer_first"},
    "pool, packed": {"kind": "pool", "max_tokens_for_batch": 40, "pool_size": 7, "sequence_packing": True},
}
LENGTHS = sst2_lengths(103, np.random.default_rng(0))  # 13 steps of 8 an epoch, the last of 7


def config_of(arm: str, **values: Any) -> RunConfig:
    return parse({"epochs": 2, "global_batch": 8, "world_size": 3, "policy": ARMS[arm], **values})


def plans_of(
    config: RunConfig, lengths: Any = LENGTHS, start: Position | None = None, caps: Any = None, **others: Any
) -> list[StepPlan]:
    exchange = LocalExchange(config.world_size)
    return list(plan_steps(config.plan_spec(caps), KnownLengths(lengths), exchange, start=start, **others))


def saved(position: Position | None) -> Position:
    """Return the position as a checkpoint on disk stores it."""
    assert position is not None
    return Position.from_dict(json.loads(json.dumps(position.as_dict())))


def identity(plan: StepPlan) -> tuple[Any, ...]:
    assert plan.after is not None
    bound = (plan.predicted_cost, plan.lower_bound, plan.status, plan.method)
    return plan.epoch, plan.step, plan.digest, *bound, plan.after.as_dict()


@settings(deadline=None)
@given(
    st.sampled_from(sorted(ARMS)),
    st.lists(st.integers(1, 60), min_size=1, max_size=70),
    st.integers(1, 5),
    st.integers(0, 6),
    st.integers(1, 12),
    st.one_of(st.tuples(st.just("epochs"), st.integers(1, 3)), st.tuples(st.just("steps"), st.integers(1, 30))),
    st.data(),
)
def test_the_same_stream_from_any_cut(
    arm: str, lengths: list[int], world: int, extra: int, prefetch: int, until: tuple[str, int], data: st.DataObject
) -> None:
    """The cut may end an epoch or the run, and the data may be smaller than B, G or the windows."""
    limit = {"epochs": None, "steps": None, until[0]: until[1]}
    policy = ARMS[arm]
    if arm == "minmax":
        policy = {**policy, "prefetch": max(prefetch, -(-(world + extra) // world))}
    config = config_of(arm, world_size=world, global_batch=world + extra, policy=policy, **limit)
    whole = plans_of(config, lengths)
    cut = data.draw(st.integers(1, len(whole)))
    rest = plans_of(config, lengths, saved(whole[cut - 1].after))
    assert [identity(plan) for plan in rest] == [identity(plan) for plan in whole[cut:]]


@pytest.mark.parametrize("arm", ARMS)
def test_memory_caps_and_measured_speeds_are_told_again(arm: str) -> None:
    speeds = [Speed(), Speed(), Speed()]
    speeds[1].slowness_ppm = 2 * 10**6
    cases: list[tuple[RunConfig, dict[str, Any]]] = [(config_of(arm), {"caps": [4, 4, 4]})]
    if ARMS[arm]["kind"] in ("minmax", "balanced", "packed"):  # these can plan without a cost
        online = {"kind": "affine_quadratic", "beta": 1e-3, "online": True}
        cases.append((config_of(arm, cost=online), {"speeds": speeds}))
    for config, values in cases:
        whole = plans_of(config, **values)
        rest = plans_of(config, start=saved(whole[4].after), **values)
        assert [identity(plan) for plan in rest] == [identity(plan) for plan in whole[5:]]
        if "speeds" in values:
            without = plans_of(config, start=saved(whole[4].after))
            differ = [plan.digest for plan in without] != [plan.digest for plan in rest]
            assert differ, "speeds are no part of a position"


@pytest.mark.parametrize("arm", ARMS)
def test_a_position_one_batch_off_is_another_stream(arm: str) -> None:
    """The cursor, the windows and the step number each change the stream."""
    whole = plans_of(config_of(arm))
    before, here, behind = (saved(plan.after) for plan in whole[3:6])
    off = [replace(before, step=5), replace(behind, step=5), replace(here, step=6)]
    if here.windows:
        off.append(replace(here, windows=here.windows[::-1]))
    for wrong in off:
        next_plans = islice(
            plan_steps(config_of(arm).plan_spec(), KnownLengths(LENGTHS), LocalExchange(3), start=wrong), 5
        )
        digests = [plan.digest for plan in next_plans]
        assert not set(digests) & {plan.digest for plan in whole[5:10]}


class Asked(KnownLengths):
    """Counts how many lengths were requested."""

    asked = 0

    def lengths(self, ids: Ids) -> Int:
        self.asked += len(ids)
        return super().lengths(ids)


class Counted(LocalExchange):
    """Runs all ranks here and counts their offers."""

    offers = 0

    def offer(self, rows: Messages) -> Messages:
        self.offers += 1
        return super().offer(rows)


@pytest.mark.parametrize("arm", ARMS)
def test_no_step_before_is_planned_again(arm: str) -> None:
    """One step requests one batch, group or table of windows and makes one offer, as the first step does."""
    lengths = sst2_lengths(4000, np.random.default_rng(1))
    config = config_of(arm, epochs=1)
    whole = plans_of(config, lengths)
    for done in (0, 1, len(whole) // 2, len(whole) - 21):
        source, exchange = Asked(lengths), Counted(3)
        start = saved(whole[done - 1].after) if done else None
        (plan,) = islice(plan_steps(config.plan_spec(), source, exchange, start=start), 1)
        assert plan.digest == whole[done].digest
        lookahead = config.policy.batches_at_once
        if config.policy.varies:  # planned from all lengths of the epoch
            assert source.asked == len(lengths)
        else:
            assert source.asked == (3 * 8 if arm == "minmax" else 8 + (8 * lookahead if lookahead > 1 else 0))
        assert exchange.offers == (arm == "minmax")


def test_planning_ahead_leaves_each_plan_its_own_position() -> None:
    config = config_of("minmax")
    whole = plans_of(config)
    plans = list(PrefetchedPlans(plan_steps(config.plan_spec(), KnownLengths(LENGTHS), LocalExchange(3))))
    assert [identity(plan) for plan in plans] == [identity(plan) for plan in whole]
    with pytest.raises(ValueError, match="read-only"):
        saved(whole[0].after).windows[0][0] = 1
    assert whole[0].after is not None
    with pytest.raises(ValueError, match="read-only"):
        whole[0].after.windows[0][0] = 1


def test_a_longer_run_goes_on_where_a_shorter_one_ended() -> None:
    short, long = (plans_of(config_of("minmax", epochs=None, steps=steps)) for steps in (13, 20))
    assert plans_of(config_of("minmax", epochs=None, steps=13), start=saved(short[-1].after)) == []
    rest = plans_of(config_of("minmax", epochs=None, steps=20), start=saved(short[-1].after))
    assert [identity(plan) for plan in [*short, *rest]] == [identity(plan) for plan in long]
    assert rest[0].epoch == 1


WINDOWS = tuple(np.arange(8 * rank, 8 * rank + 8) for rank in range(3))


@pytest.mark.parametrize(
    ("arm", "position", "words"),
    [
        ("minmax", Position(0, 1, 32, WINDOWS[:2]), r"windows of 2 ranks.*world_size = 3 has 3"),
        ("minmax", Position(0, 1, 32), r"windows of 0 ranks.*'minmax' with world_size = 3 has 3"),
        ("minmax", Position(0, 1, 0, WINDOWS), r"cursor = 0 has windows of 3 ranks.* has 0"),
        ("static", Position(0, 1, 32, WINDOWS), r"windows of 3 ranks.*'static' with world_size = 3 has 0"),
        ("minmax", Position(0, 1, 32, (*WINDOWS[:2], np.arange(96, 104))), "id 103; the data has ids 0 to 102"),
        ("minmax", Position(0, 1, 32, (*WINDOWS[:2], np.arange(-1, 7))), "id -1; the data has ids 0 to 102"),
        ("minmax", Position(0, 1, 32, (*WINDOWS[:2], WINDOWS[0])), "an id twice"),
        ("minmax", Position(0, 1, 16, WINDOWS), r"after -8 samples of its epoch \(cursor = 16, 24 waiting\)"),
        ("balanced", Position(0, 1, 12), r"after 12 samples.*global_batch = 8"),
        ("packed", Position(0, 1, 104), "cursor = 104 lies beyond the data: 103 samples"),
        ("static", Position(2, 26, 0), r"epoch 2 \(from 0\), but epochs = 2"),
    ],
)
def test_a_position_that_does_not_fit(arm: str, position: Position, words: str) -> None:
    """The position is refused at once, not only when the first plan is requested."""
    with pytest.raises(ConfigError, match=words):
        plan_steps(config_of(arm).plan_spec(), KnownLengths(LENGTHS), LocalExchange(3), start=position)


@pytest.mark.parametrize(("change", "epoch"), [({"seed": 1}, 0), ({}, 1), ({"order": {"kind": "sequential"}}, 0)])
def test_windows_that_this_order_did_not_hand_out(change: dict[str, Any], epoch: int) -> None:
    """Another seed, epoch or order would repeat some samples and omit others."""
    here = saved(plans_of(config_of("minmax"))[4].after)
    with pytest.raises(ConfigError, match=r"windows hold id \d+, which is not among the first 64"):
        plans_of(config_of("minmax", **change), start=replace(here, epoch=epoch))


def test_a_position_beyond_the_last_step() -> None:
    config = config_of("static", epochs=None, steps=5)
    with pytest.raises(ConfigError, match="after 6 steps, but steps = 5"):
        plan_steps(config.plan_spec(), KnownLengths(LENGTHS), LocalExchange(3), start=Position(0, 6, 48))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epoch": -1}, "epoch = -1, needs an integer of 0 or more"),
        ({"step": "4"}, "step = '4'"),
        ({"step": True}, "step = True"),
        ({"cursor": 8.0}, r"cursor = 8\.0"),
        ({"cursor": 2**63}, "cursor = 9223372036854775808"),
        ({"windows": 3}, "windows = 3, needs a list of ids for each rank"),
        ({"windows": [1, 2]}, r"windows = \[1, 2\]"),
        ({"windows": [[1], [2, None]]}, r"windows\[1\] holds None"),
        ({"seed": 3}, r"needs exactly \['cursor', 'epoch', 'step', 'windows'\], got \['cursor', .*'seed'"),
    ],
)
def test_a_state_that_is_no_position(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Position.from_dict({**Position(0, 1, 8).as_dict(), **change})


def test_a_state_that_is_no_table() -> None:
    for state in ([], None, {}, {"epoch": 0}):
        with pytest.raises(ConfigError, match="a position needs exactly"):
            Position.from_dict(state)
