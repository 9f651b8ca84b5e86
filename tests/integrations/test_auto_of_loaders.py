"""Policy auto in loaders of other people's loops: the fastest by a calibration, and the same when a stream goes on."""

import json
import logging
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plan_commands import fill
from torch.utils.data import DataLoader

import ddpsched
from ddpsched import BatchSampler, StepLoader, World, for_world_size
from ddpsched.certify.certify_loader import certify_loader
from ddpsched.costs.calibration import Calibration, Measured
from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.errors import ConfigError, InfeasibleError
from ddpsched.integrations import plan_source
from ddpsched.planning.prediction import STEPS

LENGTHS = sst2_lengths(303, np.random.default_rng(0))
FIRST, ALONE = World(0, 2), World(0, 1)


def seconds(alpha: float, beta: float = 1e-5) -> dict[str, Any]:
    return {"kind": "affine_quadratic", "alpha": alpha, "beta": beta}


def loader(world: World | None = FIRST, **words: Any) -> StepLoader:
    words = {"global_batch": 16, "policy": "auto", "cost": seconds(0.0), **words}
    return StepLoader(range(len(LENGTHS)), LENGTHS, world=world, collate_fn=list, **words)


def sampler(world: World | None = FIRST, lengths: Any = LENGTHS, **words: Any) -> BatchSampler:
    words = {"global_batch": 16, "policy": "auto", "cost": seconds(0.0), **words}
    return BatchSampler(lengths, world=world, **words)


def several(count: int) -> dict[str, Any]:
    return {"kind": "balanced", "max_microbatches": count} if count > 1 else {"kind": "balanced"}


def step_s(policy: Any, cost: Any) -> float:
    """Return the mean of what the slowest rank costs, over as many steps as are predicted."""
    plans = islice(loader(policy=policy, cost=cost, max_num_steps=STEPS).plans(), STEPS)
    return float(np.mean([max(plan.predicted_cost or ()) for plan in plans]))


@pytest.mark.parametrize(("alpha", "count"), [(0.0, 4), (4e-4, 2), (1.0, 1)])
def test_the_fastest_is_taken(alpha: float, count: int) -> None:
    """Where several are as fast within 1 %, the one with the fewest micro-batches is."""
    candidates = [{"kind": "static"}, *map(several, (1, 2, 4))]
    times = [step_s(each, seconds(alpha)) for each in candidates]
    near = [place for place, own in enumerate(times) if own <= 1.01 * min(times)]
    best = candidates[min(near, key=lambda place: (max(1, place), times[place]))]  # static has one micro-batch, too
    found = loader(cost=seconds(alpha))
    assert found.policy == best == several(count)
    expected = loader(policy=best, cost=seconds(alpha))
    assert [plan.digest for plan in found.plans()] == [plan.digest for plan in expected.plans()]
    assert found.state_dict() == expected.state_dict()


def test_a_list_is_one_micro_batch(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "ddpsched"):
        ranks = [sampler(World(rank, 2)) for rank in range(2)]
        assert sorted(id for rank in ranks for ids in rank for id in ids) == list(range(len(LENGTHS)))
        assert [each.policy for each in ranks] == [several(1)] * 2
    (line,) = caplog.messages  # of rank 0
    assert line.startswith("BatchSampler: auto takes balanced for world_size = 2, predicted at 2.0 ms a step, 0.653")
    data = DataLoader(range(len(LENGTHS)), batch_size=16)  # type: ignore[arg-type] # a sequence of numbers
    balanced = ddpsched.balanced(data, LENGTHS, policy="auto", cost=seconds(0.0), world=ALONE)
    assert balanced.policy == {"kind": "static"}, "one rank alone has nothing to balance"


def calibration(folder: Path, passes: list[float], **changed: Any) -> dict[str, Any]:
    """Return the cost of a calibration whose micro-batches took these times in its passes."""
    point = Measured(count=1, length=8, held_out=False, seconds=passes, peak_bytes=None)
    path = fill(folder) / "calibration.json"
    read = Calibration.load(path)
    changed = {"seconds": read.seconds.model_copy(update={"alpha": 0.0, "gamma": 0.0, **changed}), "points": [point]}
    path.write_text(read.model_copy(update=changed).model_dump_json(), encoding="utf-8")
    return {"kind": "calibrated", "path": str(path)}


def test_one_that_is_predicted_to_be_slower_than_static_is_not(tmp_path: Path) -> None:
    """Balanced makes the ranks' padded tokens 124 and 84 in place of 54 and 126; noise hits the largest of both."""
    lengths = np.tile([7, 9, 18, 31, 31, 42], 20)
    words: dict[str, Any] = {"lengths": lengths, "order": "sequential", "global_batch": 6}
    for passes, kind in (([1.0] * 10, "balanced"), ([1.0] * 90 + [2.0] * 10, "static")):
        assert sampler(cost=calibration(tmp_path, passes), **words).policy["kind"] == kind
    assert sampler(lengths=[20] * 64).policy == {"kind": "static"}, "nothing to gain"


def test_the_number_of_ranks_may_be_known_late(monkeypatch: pytest.MonkeyPatch) -> None:
    made = sampler(None)
    assert made.policy == {"kind": "static"}
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert list(made) == list(sampler(World(1, 2), policy="balanced"))
    assert made.policy == several(1)


def test_a_stream_that_goes_on_keeps_its_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, first, other = list(loader()), loader(), loader(policy="static")
    for _ in zip(range(5), first, strict=False):
        pass
    state = json.loads(json.dumps(first.state_dict()))
    monkeypatch.setattr(plan_source, "choose_policy", lambda *_: pytest.fail("chosen anew"))
    again = loader()
    again.load_state_dict(state)
    assert again.policy == several(4)
    assert list(again) == whole[5:]
    second = loader(policy=several(4))
    second.set_epoch(1)
    assert list(again) == list(second), "and the next epoch"
    for size in (1, 3):  # for which another would be chosen
        resized = loader(World(0, size))
        resized.load_state_dict(for_world_size(state, size))
        assert (resized.first_step, resized.policy) == (5, several(4))
    again.load_state_dict(other.state_dict())
    assert again.policy == {"kind": "static"}
    with pytest.raises(ConfigError, match=r"cost\.beta = 1e-05, here 2e-05"):
        loader(cost=seconds(0.0, 2e-5)).load_state_dict(state)
    with pytest.raises(ConfigError, match="seed = 1, here 0"):
        again.load_state_dict({**state, "seed": 1})
    assert again.policy == {"kind": "static"}, "a state that is refused changes nothing"


def test_a_state_of_what_is_no_candidate_is_refused() -> None:
    state = loader(policy="minmax").state_dict()
    with pytest.raises(ConfigError, match=r"policy\.kind = 'minmax', here 'balanced'"):
        loader().load_state_dict(state)


def test_a_candidate_that_memory_does_not_hold_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    memory = {"path": str(fill(tmp_path) / "calibration.json"), "budget_bytes": 1_300_000}
    with caplog.at_level("INFO", "ddpsched"):
        limited = loader(memory=memory)
        next(limited.plans())
    assert limited.policy["kind"] == "balanced"
    assert "auto: static is left out: static gives each rank" in caplog.text
    memory["budget_bytes"] = 1_010_000
    with pytest.raises(InfeasibleError, match=r"'auto' plans with static and .*, and none of them fits: .* or name"):
        next(loader(memory=memory).plans())


def test_an_epoch_without_steps_has_nothing_to_predict() -> None:
    assert list(sampler(lengths=[3, 4, 5], last="full")) == []


def test_a_loader_of_it_is_certified() -> None:
    certificate = certify_loader(lambda rank, size: sampler(World(rank, size), LENGTHS[:60]), 2)
    assert certificate.holds, str(certificate)
