"""Trainer's arms on two gloo ranks: every mended gradient is exact, and a training ends at its target."""

import pytest

from ddpsched.local_ranks import answers, run_ranks
from experiments.benchmarks.bench import AA
from experiments.trainers.arms import ARMS, FIRST, ODB, runnable
from experiments.trainers.dev_loss import measure_seed, measure_target
from experiments.trainers.flattening import why_not_flattened
from experiments.trainers.setting import Setting
from experiments.trainers.step_times import measure_launch

COST = {"kind": "affine_quadratic", "alpha": 1e-3, "beta": 1e-5}
SETTING = Setting("tiny", None, COST, odb_tokens=246)


@pytest.mark.slow
def test_every_mended_gradient_is_exact() -> None:
    names, _ = runnable(list(ARMS))
    launch = answers(run_ranks(measure_launch, 2, SETTING, names, 2, 1, 0, timeout_s=300))[0]
    assert set(launch.errors) == set(names)
    assert max(launch.errors.values()) < 1e-5
    assert set(launch.own_errors) == {name for name in names if not ARMS[name].policy}
    assert min(launch.own_errors.values()) > 0.01, "as they come, they are wrong on two ranks"
    assert set(launch.seconds) == {*names, AA}
    assert all(counts == [2 * 32] for name, counts in launch.samples.items() if name != ODB)
    assert launch.auto is not None


@pytest.mark.slow
def test_a_training_ends_at_its_target() -> None:
    names = [FIRST, "balanced"]
    found = answers(run_ranks(measure_seed, 2, SETTING, names, 0, 0.69, 20, timeout_s=300))[0]
    assert list(found.arms) == [FIRST, AA, "balanced"]
    for run in found.arms.values():
        assert run.reached == (run.least <= 0.69)
        assert run.samples == 32 * run.steps or not run.reached
        assert run.seconds > 0
    assert found.arms[FIRST].least != found.arms[AA].least, "another order"


@pytest.mark.slow
def test_the_target_is_what_random_reaches() -> None:
    target = answers(run_ranks(measure_target, 2, SETTING, 40, None, timeout_s=300))[0]
    assert len(target.least) == 3
    assert min(target.least) <= target.target < 0.8


def test_why_transformers_own_collator_is_no_arm() -> None:
    why = why_not_flattened(Setting("tiny", None))
    assert "DataCollatorWithFlattening with DistilBertForSequenceClassification" in why
    assert "gives 1 row of logits for 3 of them" in why
