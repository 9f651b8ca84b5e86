"""Candidates that may be the fastest are tried for a few steps; what these took counts, whatever was predicted."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from auto_runs import chosen, config_of
from ranks import run_ranks

from ddpsched.advise import trials
from ddpsched.costs.calibration import Seconds
from ddpsched.costs.step_times import KEPT, StepTimes
from ddpsched.exchange import LocalExchange
from ddpsched.run_loop import run
from ddpsched.training import trial_steps, trial_times

pytestmark = pytest.mark.usefixtures("kept")  # each test measures for itself


def given_times(beta: float) -> StepTimes:
    return StepTimes(
        identity=None, world_size=2, padded=Seconds(alpha=1e-4, beta=beta, gamma=0, delta=0, floor=0), packed=None,
        rest_s=1e-3, error=0.05, noise=[1.0] * 10,
    )  # fmt: skip


def as_predicted(fixed_s: float, beta: float) -> Callable[[Any, Any], float]:
    """Return what a micro-batch takes: what ``given_times(beta)`` says, and ``fixed_s`` beside."""

    def seconds(learner: Any, collate: Any) -> float:
        return fixed_s + 1e-4 + beta * collate().inputs["input_ids"].numel()

    return seconds


@pytest.mark.parametrize(("fixed_s", "taken"), [(0.0, "balanced, M = 4"), (1.0, "balanced")])
def test_what_was_slower_than_predicted_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fixed_s: float, taken: str
) -> None:
    monkeypatch.setattr(trial_times, "measure_times", lambda *_: given_times(1e-3))
    monkeypatch.setattr(trial_steps, "seconds_of", as_predicted(fixed_s, 1e-3))
    entry = chosen(run(config_of(tmp_path, policy={"kind": "auto", "packed": False}, global_batch=16)))
    tried = entry["times"]["tried"]
    assert tried.keys() == {"static", "balanced", "balanced, M = 2", "balanced, M = 4"}
    assert entry["chosen"] == taken
    if not fixed_s:
        assert {round(each["ratio"], 6) for each in tried.values()} == {1.0}
        assert max(each["error"] for each in tried.values()) < 1e-6
    else:
        assert tried["static"]["ratio"] < tried["balanced"]["ratio"] < tried["balanced, M = 4"]["ratio"]


def test_steps_take_turns_while_there_is_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step is as if it took 4 s, and runs twice, so the third round of two candidates would end too late."""
    now, ran = [0.0], list[int]()

    def seconds(learner: Any, collate: Any) -> float:
        now.append(now[-1] + 2.0)
        ran.append(collate().inputs["input_ids"].shape[0])
        return 2.0

    monkeypatch.setattr(trial_times, "measure_times", lambda *_: given_times(1e-3))
    monkeypatch.setattr(trial_steps, "seconds_of", seconds)
    monkeypatch.setattr(trial_steps, "perf_counter", lambda: now[-1])
    policy = {"kind": "auto", "packed": False, "max_microbatches": 1}
    tried = chosen(run(config_of(tmp_path, policy=policy)))["times"]["tried"]
    assert tried.keys() == {"static", "balanced"}
    rounds = 2  # of 16 s; none is to end after 45 s
    assert len(ran) == rounds * len(tried) * 2 * 2
    first, second = ran[:8], ran[8:]
    assert first[:2] == first[2:4] != [4, 4], "balanced first in the first round"
    assert second[:4] == [4] * 4, "static first in the second one"


def test_the_second_half_of_the_time_is_for_those_that_may_be_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of 16.2 s until half of 50 s is over; then, without the slow one, of 8.2 s, none of which ends later."""
    now = [0.0]

    def step_s(learner: Any, seconds: float, exchange: Any) -> float:
        now[0] += seconds
        return seconds

    monkeypatch.setattr(trial_steps, "_step_s", step_s)
    monkeypatch.setattr(trial_steps, "perf_counter", lambda: now[0])
    plans: Any = {"slow": [4.0] * 12, "near": [2.1] * 12, "fast": [2.0] * 12}
    learner = SimpleNamespace(begin_step=lambda: None, undo=lambda: None)
    found = trial_steps.measure_steps(learner, plans, LocalExchange(1), bool, 50.0)  # type: ignore[arg-type]
    assert {name: len(seconds) for name, seconds in found.items()} == {"slow": 2, "near": 4, "fast": 4}


def test_a_step_after_others_is_timed_as_one_after_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if memory that others left free for a while took as long to use as the step itself."""
    ran = [0.0]

    def step_s(learner: Any, seconds: float, exchange: Any) -> float:
        ran.append(seconds)
        return seconds if seconds == ran[-2] else 2 * seconds

    monkeypatch.setattr(trial_steps, "_step_s", step_s)
    learner = SimpleNamespace(begin_step=lambda: None, undo=lambda: None)
    plans: Any = {"large": [4.0] * 3, "small": [1.0] * 3}
    found = trial_steps.measure_steps(learner, plans, LocalExchange(1), bool, 9.0)  # type: ignore[arg-type]
    assert found == {"large": [4.0] * 3, "small": [1.0] * 3}


def test_a_model_that_is_too_slow_is_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_times, "measure_times", lambda *_: given_times(1.0))
    monkeypatch.setattr(trial_steps, "seconds_of", lambda *_: pytest.fail("tried"))
    assert chosen(run(config_of(tmp_path)))["times"]["tried"] == {}


def on_two_ranks(folder: Path, cache: Path) -> list[dict[str, list[float]]]:
    """Let a micro-batch take 1 s on rank 0 and 3 s on rank 1; return what was measured."""
    import os

    from ddpsched.world import World

    os.environ[KEPT] = str(cache)
    rank, found = World.detect().rank, list[dict[str, list[float]]]()

    def measured(*given: Any) -> dict[str, list[float]]:
        found.append(trial_steps.measure_steps(*given))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial_times, "measure_times", lambda *_: given_times(1e-3 if rank == 0 else 1e-5))
        patch.setattr(trial_steps, "seconds_of", lambda *_: 1.0 + 2.0 * rank)
        patch.setattr(trials, "measure_steps", measured)
        run(config_of(folder, executor={"kind": "distributed"}, policy={"kind": "auto", "max_microbatches": 1}))
    return found


@pytest.mark.slow
def test_a_step_lasts_until_its_last_rank_is_ready(tmp_path: Path) -> None:
    zero, one = run_ranks(on_two_ranks, 2, tmp_path, tmp_path / "kept")
    assert zero == one
    assert {*zero[0]["static"]} == {3.0}
