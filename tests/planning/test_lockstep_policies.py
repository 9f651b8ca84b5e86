"""Policies in lockstep: as many micro-batches on each rank, within the cap, near the bound; every sample once."""

from itertools import zip_longest
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ddpsched
from ddpsched.config import parse
from ddpsched.data.lengths import KnownLengths
from ddpsched.errors import ConfigError, InfeasibleError
from ddpsched.exchange import LocalExchange
from ddpsched.planning.planner import plan_steps
from ddpsched.step_plan import StepPlan
from ddpsched.world import World


def plans(lengths: list[int], world_size: int, global_batch: int, **policy: Any) -> list[StepPlan]:
    values = {
        "epochs": 1,
        "world_size": world_size,
        "global_batch": global_batch,
        "policy": {"lockstep": True, **policy},
    }
    spec = parse(values | {"executor": {"kind": "simulated"}}).plan_spec()
    return list(plan_steps(spec, KnownLengths(np.array(lengths)), LocalExchange(world_size)))


POLICIES: list[dict[str, Any]] = [
    {"kind": "packed", "max_tokens": 60},
    {"kind": "packed"},
    {"kind": "balanced", "max_microbatches": 4},
]


@pytest.mark.parametrize("policy", POLICIES)
@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=60), size=st.integers(1, 5), more=st.integers(0, 30))
def test_all_ranks_have_as_many(policy: dict[str, Any], lengths: list[int], size: int, more: int) -> None:
    made = plans(lengths, size, size + more, **policy)
    assert sorted(id for plan in made for id in plan.ids.tolist()) == list(range(len(lengths)))
    for plan in made:
        counts = [len(rank) for rank in plan.ranks]
        if plan.global_batch >= size * max(counts):
            assert len(set(counts)) == 1
        else:  # too few samples
            assert max(counts) - min(counts) == 1
        costs = [
            [sum(lengths[i] for i in m.ids) if m.packed else len(m) * max(lengths[i] for i in m.ids) for m in rank]
            for rank in plan.ranks
        ]
        together = sum(map(max, zip_longest(*costs, fillvalue=0)))
        assert plan.predicted_cost == (together,) * size
        assert plan.lower_bound is None or plan.lower_bound <= together
        if "max_tokens" in policy:
            assert max(map(max, filter(None, costs))) <= 60


def test_the_last_ranks_of_each_level_change() -> None:
    made = plans([9] * 20, 2, 6, kind="packed", max_tokens=18)
    assert {plan.counts.tolist()[0] for plan in made[:-1]} == {3}
    idle = plans([9] * 13, 4, 12, kind="packed", max_tokens=30)[-1]
    assert sorted(idle.counts.tolist()) == [0, 0, 0, 1]


def test_rollouts_are_near_the_bound() -> None:
    lengths = (np.random.default_rng(0).lognormal(6, 1, 512).clip(30, 8000)).astype(int).tolist()
    (plan,) = plans(lengths, 8, 512, kind="packed", max_tokens=16_384)
    assert plan.predicted_cost is not None
    assert plan.lower_bound is not None
    assert plan.predicted_cost[0] <= 1.01 * plan.lower_bound


def test_a_step_costs_the_sum_of_the_slowest() -> None:
    """In the table of `ddpsched plan`, and in simulated times."""
    from ddpsched.costs.cost_model import CostModel
    from ddpsched.planning.yardstick import Ruler

    step = [[np.array([0]), np.array([1])], [np.array([2]), np.array([3])]]
    for lockstep, cost in ((False, 10), (True, 16)):
        ruler = Ruler(np.array([9, 1, 2, 7]), 2, CostModel(0, 1, 0, scale=1), lockstep=lockstep)
        ruler.add_epoch([step])
        assert ruler.read().yardstick == cost / (19 / 2)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"policy": {"kind": "packed", "max_tokens": 9}}, "max_tokens is of the rows of lockstep = true"),
        (
            {"policy": {"kind": "static", "lockstep": True}},
            "belongs to kind = 'balanced' or 'packed', not 'static'",
        ),
        (
            {"policy": {"kind": "packed", "lockstep": True}, "memory": {"path": "c.json", "budget_bytes": 9}},
            "lockstep = true plans for ranks that are alike, and memory is of each rank",
        ),
        (
            {
                "policy": {"kind": "balanced", "lockstep": True},
                "cost": {"kind": "calibrated", "path": "c.json", "online": True},
            },
            "ranks that are alike, and cost.online is",
        ),
        ({"sync": {"kind": "ddp", "reshard": True}}, "reshard belongs to kind = 'fsdp', not 'ddp'"),
        (
            {"sync": {"kind": "fsdp", "reshard": True}, "policy": {"kind": "balanced", "max_microbatches": 4}},
            "'balanced' with 4 micro-batches a rank may differ; set policy.lockstep = true",
        ),
        (
            {
                "sync": {"kind": "fsdp", "reshard": True},
                "policy": {"kind": "token_budget", "max_tokens_for_batch": 99, "batches_per_optimizer_step": 2},
            },
            "use 'packed' or 'balanced' with lockstep = true",
        ),
    ],
)
def test_refused(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parse({"epochs": 1, "executor": {"kind": "distributed"}, **values})


def test_a_sample_over_the_cap_and_ranks_of_other_speeds() -> None:
    with pytest.raises(InfeasibleError, match=r"policy\.max_tokens = 20, but a sample has 21"):
        plans([3, 21, 4], 1, 3, kind="packed", max_tokens=20)
    policy = {"kind": "packed", "lockstep": True}
    loader = ddpsched.StepLoader([0] * 4, [1] * 4, global_batch=4, world=World(0, 2), policy=policy, speeds=[1.0, 0.5])
    with pytest.raises(InfeasibleError, match="leave speeds out"):
        list(loader.plans())


def test_a_loader_gives_an_idle_rank_as_many_stand_ins() -> None:
    lengths, policy = [9] * 11, {"kind": "packed", "lockstep": True, "max_tokens": 9}

    def steps(rank: int) -> list[tuple[int, float]]:
        loader = ddpsched.StepLoader(
            list(range(11)), lengths, global_batch=8, world=World(rank, 4), policy=policy, collate_fn=list
        )
        return [(len(batches), scale) for batches, scale in ddpsched.scaled(loader)]

    found = [steps(rank) for rank in range(4)]
    assert [each[0][0] for each in found] == [2] * 4
    assert [each[1][0] for each in found] == [1] * 4
    assert sorted(each[1][1] > 0 for each in found) == [False, True, True, True]


@pytest.mark.parametrize("rank", range(4))
def test_a_last_step_that_cannot_be_even_is_refused_on_all_ranks(rank: int) -> None:
    policy = {"kind": "packed", "lockstep": True, "max_tokens": 9}
    made = ddpsched.StepLoader(
        list(range(13)), [9] * 13, global_batch=8, world=World(rank, 4), policy=policy, collate_fn=list
    )
    with pytest.raises(InfeasibleError, match=r"too few for 2 micro-batches on each of 4 ranks.*give last='drop'"):
        list(ddpsched.scaled(made))
