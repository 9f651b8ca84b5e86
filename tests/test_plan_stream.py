"""Plans after a rank ran out of memory: they keep to what fitted, and each sample still comes once."""

from typing import Any

import numpy as np
import pytest

from ddpsched.costs.memory_cap import UNLIMITED, lowered
from ddpsched.data.lengths import KnownLengths
from ddpsched.exchange import LocalExchange
from ddpsched.plan_stream import PlanStream
from ddpsched.planning.plan_spec import PlanSpec
from ddpsched.planning.policies import POLICIES
from ddpsched.planning.record_columns import largest_need
from ddpsched.step_plan import StepPlan

LENGTHS = KnownLengths(np.random.default_rng(5).integers(2, 40, 400))
OPTIONS: dict[str, dict[str, Any]] = {
    "minmax": {"prefetch": 40},
    "balanced": {"max_microbatches": 4},
    "packed": {},
    "token_budget": {"max_tokens_for_batch": 400},
    "pool": {"max_tokens_for_batch": 400, "pool_size": 40},
}
ROOM = 100  # tokens


def stream(kind: str, **options: Any) -> PlanStream:
    spec = PlanSpec(3, 24, POLICIES[kind](kind=kind, **options), seed=1, epochs=1, max_length=40)
    return PlanStream(spec, LENGTHS, LocalExchange(3))


def need(plan: StepPlan, rank: int) -> int:
    return largest_need(UNLIMITED, plan, rank, LENGTHS)


@pytest.mark.parametrize("kind", OPTIONS)
def test_later_plans_keep_to_what_fitted(kind: str) -> None:
    plans = stream(kind, **OPTIONS[kind])
    seen = [next(plans) for _ in range(3)]
    assert plans.lower({1: ROOM})
    later = list(plans)
    assert max(need(plan, 1) for plan in later) <= ROOM < max(need(plan, 1) for plan in stream(kind, **OPTIONS[kind]))
    ids = np.concatenate([plan.ids for plan in (*seen, *later)])
    assert sorted(ids.tolist()) == list(range(400))
    assert [plan.step for plan in (*seen, *later)] == list(range(len(seen) + len(later)))


def test_a_policy_that_cannot_goes_on_as_before(caplog: pytest.LogCaptureFixture) -> None:
    """static gives every rank the same count: its steps are repeated where memory runs out."""
    plans = stream("static")
    seen = [next(plans) for _ in range(3)]
    assert plans.lower({1: 40})
    later = list(plans)
    assert sorted(np.concatenate([plan.ids for plan in (*seen, *later)]).tolist()) == list(range(400))
    assert "memory caps are as at the start again" in caplog.text
    assert not plans.lower({1: 30}), "it is not tried again"


def test_the_lowest_of_several_limits_holds() -> None:
    caps = lowered(lowered(None, {1: 50}, 3), {1: 80, 2: 60}, 3)
    assert [cap.room for cap in caps] == [UNLIMITED.room, 50, 60]
    plans = stream("balanced", max_microbatches=4)
    next(plans)
    plans.lower({1: 90})
    plans.lower({1: 200, 0: 150})
    assert plans.rooms == {1: 90, 0: 150}


def test_steps_are_counted_anew() -> None:
    """The learning rate falls over the steps that there will be; and a run that goes on counts the same."""
    plans = stream("pool", max_tokens_for_batch=400, pool_size=40)
    before = plans.num_steps()
    seen = [next(plans) for _ in range(2)]
    assert plans.lower({rank: ROOM for rank in range(3)})
    expected = plans.num_steps()
    later = list(plans)
    assert expected == len(seen) + len(later) > before
    spec, start = stream("pool", max_tokens_for_batch=400, pool_size=40).spec, later[1].after
    rooms = {rank: ROOM for rank in range(3)}
    assert PlanStream(spec, LENGTHS, LocalExchange(3), start=start, rooms=rooms).num_steps() == expected
