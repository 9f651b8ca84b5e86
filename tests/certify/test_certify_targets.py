"""Certificates of each denominator: right loops hold on real ranks, and those that other code bases had are named."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from step_cases import Case, StepCases

from ddpsched import assert_gradient_exact
from ddpsched.certify.command import Request, certify
from ddpsched.denominators import TARGETS
from ddpsched.errors import ConfigError
from experiments.benchmarks.denominators import predictor_of_labels
from experiments.denominator_faults import BATCHES, FAULTS, FLAT, MEANS, RANKS, own_means, weighted

RIGHT = {f"{mean.target}, {mean.windows}": mean for mean in MEANS}
CASES: dict[str, Case] = {
    **{name: (partial(weighted, mean=mean), predictor_of_labels, BATCHES) for name, mean in RIGHT.items()},
    **{name: (fault.step, predictor_of_labels, fault.batches) for name, fault in FAULTS.items()},
}


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> StepCases:
    return StepCases(CASES, RANKS, tmp_path_factory.mktemp("steps"))


@pytest.mark.parametrize("name", RIGHT)
def test_right_loops_hold(cases: StepCases, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mean = RIGHT[name]
    certificate = cases.certify(name, monkeypatch, target=mean.target, length=mean.length)
    assert "<= 1e-12" in certificate.text()


@pytest.mark.parametrize("name", FAULTS)
def test_faults_that_others_had_are_named(cases: StepCases, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mean = FAULTS[name].mean
    with pytest.raises(AssertionError) as error:
        cases.certify(name, monkeypatch, target=mean.target, length=mean.length)
    assert FAULTS[name].cause in " ".join(str(error.value).split())


@pytest.mark.parametrize("target", [*TARGETS[2:], "sample_mean", pytest.param("token_mean", marks=pytest.mark.slow)])
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_runs_of_a_language_model_hold_on_real_ranks(target: str, size: int) -> None:
    (certificate,) = certify(Request(words=(), target=target, world_size=size))
    assert certificate.holds, certificate.text()
    assert f"train.target = {target}: " in certificate.text()
    assert "<= 1e-12" in certificate.text()


def test_a_fault_of_a_run_is_found() -> None:
    words = ("executor.kind=virtual",)
    for target in ("group_mean", "window_token_mean", "constant_length"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("ddpsched.training.denominator.Denominator.weigh", lambda *_: np.ones(len(_[1])))
            patch.setattr("ddpsched.training.denominator.Denominator.scale", lambda self: 1 / self._sums()[2])
            (certificate,) = certify(Request(words=words, policy="balanced", target=target, world_size=2))
        assert not certificate.holds
        assert "every label token weighs the same, whatever its sample" in " ".join(certificate.text().split())


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"target": "group_mean"}, "'group_mean' needs batch\\['group_ids'\\]"),
        ({"target": "window_token_mean", "length": 3.0}, "needs batch\\['group_ids'\\].*got \\[\\] and 3.0"),
        ({"target": "constant_length"}, "'constant_length' needs length"),
        ({"target": "group_mean", "length": 3.0}, "'group_mean' takes no length"),
        ({"target": "self_normalised"}, "is a ratio of sums over the batch"),
    ],
)
def test_refused(options: dict[str, Any], named: str) -> None:
    bare = [[{name: value for name, value in FLAT[0].items() if name != "group_ids"}]]
    with pytest.raises(ConfigError, match=named):
        assert_gradient_exact(own_means, predictor_of_labels, bare, **options)


def test_the_option_belongs_to_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--target belongs to CONFIG and --policy, not to --loader"):
        certify(Request(words=(), loader="a:b", target="group_mean"))
    with pytest.raises(ConfigError, match="--target = 'contrastive' is a ratio of sums"):
        certify(Request(words=(), target="contrastive"))
