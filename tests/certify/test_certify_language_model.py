"""Certificates of language models: label tokens or samples weigh the same, and the cause names the wrong ones."""

from pathlib import Path
from typing import Any

import pytest
from prompted import write_prompted

from ddpsched.certify.certificate import Certificate, Check
from ddpsched.certify.certify_run import certify_run
from ddpsched.certify.command import SMALL
from ddpsched.config import RunConfig, parse
from ddpsched.training.denominator import Denominator


def run_of(tmp_path: Path, target: str, executor: str = "virtual", **values: Any) -> RunConfig:
    return parse(
        {
            **SMALL,
            "world_size": 2,
            "data": write_prompted(tmp_path / "data", 48),
            "model": {"task": "causal_lm"},
            "policy": {"kind": "balanced"},
            "executor": {"kind": executor},
            "train": {"target": target},
            **values,
        }
    )


def gradient(certificate: Certificate) -> Check:
    return next(check for check in certificate.checks if check.name == "gradient")


@pytest.mark.parametrize("target", ["token_mean", "sample_mean"])
def test_real_ranks(tmp_path: Path, target: str) -> None:
    certificate = certify_run(run_of(tmp_path, target, "distributed"))
    assert certificate.holds, certificate.text()
    assert "<= 1e-12" in gradient(certificate).says
    assert ("label tokens of the global batch" in gradient(certificate).says) == (target == "token_mean")
    assert any(fact.startswith(f"train.target = {target}: every") for fact in certificate.facts)
    wrong = gradient(certify_run(run_of(tmp_path, target, "distributed"), "no_scale"))
    assert not wrong.holds
    counted = "tokens (no scale G*n_r/N)" if target == "token_mean" else "samples (no scale G*b_r/B)"
    assert f"every rank takes the mean over its own {counted}" in (wrong.cause or "")


@pytest.mark.parametrize("policy", ["packed", "minmax", "static"])
@pytest.mark.parametrize("target", ["token_mean", "sample_mean"])
def test_virtual_ranks(tmp_path: Path, target: str, policy: str) -> None:
    certificate = certify_run(
        run_of(tmp_path, target, policy={"kind": policy, **({"prefetch": 13} if policy == "minmax" else {})})
    )
    assert certificate.holds, certificate.text()


@pytest.mark.parametrize("mask", ["per_sample", "shared"])
def test_masks(tmp_path: Path, mask: str) -> None:
    certificate = certify_run(run_of(tmp_path, "token_mean", model={"task": "causal_lm", "mask": mask}))
    assert certificate.holds, certificate.text()


def test_the_other_target_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token mean's loss divided by samples gives the right direction and too large a gradient."""
    config = run_of(tmp_path, "token_mean")
    monkeypatch.setattr(Denominator, "scale", lambda _: 1 / config.global_batch)
    check = gradient(certify_run(config))
    assert not check.holds
    assert check.numbers["cosine"] == pytest.approx(1)
    assert check.numbers["best_scale"] > 2
