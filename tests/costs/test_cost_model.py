"""Costs of prefixes, and the fit of the affine-quadratic form."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpsched.costs.config import CostConfig, check_range, cost_model
from ddpsched.costs.cost_model import CostModel, padded_tokens, padded_tokens_squared
from ddpsched.costs.regression import fit_affine_quadratic, fit_records
from ddpsched.errors import ConfigError, DataError


@given(st.lists(st.integers(1, 500), min_size=1, max_size=40))
def test_prefix_costs_by_their_definition(lengths: list[int]) -> None:
    expected = [k * max(lengths[:k]) for k in range(1, len(lengths) + 1)]
    assert padded_tokens.prefixes(np.array(lengths)).tolist() == expected
    assert padded_tokens_squared.prefixes(np.array(lengths)).tolist() == [cost**2 for cost in expected]


def test_affine_quadratic_is_whole_nanoseconds() -> None:
    cost = CostModel(alpha=1e-3, beta=2e-6, gamma=3e-9)
    assert int(cost.padded(4, 10)) == 1_000_000 + 2_000 * 40 + 3 * 4 * 100
    assert int(cost.padded(0, 10)) == 0, "no samples, no work"
    assert cost.packed(np.array([10, 5])) == 1_000_000 + 2_000 * 15 + 3 * (100 + 25)


def test_the_fit_finds_what_made_the_times() -> None:
    rng = np.random.default_rng(0)
    count, length = rng.integers(1, 32, 200), rng.integers(3, 128, 200)
    true = CostModel(alpha=0.09, beta=2.6e-3, gamma=4e-6)
    fit = fit_affine_quadratic(count, length, true.seconds(count, length))
    assert (fit.model.alpha, fit.model.beta, fit.model.gamma) == pytest.approx((0.09, 2.6e-3, 4e-6), rel=1e-6)
    assert fit.mean_relative_error < 1e-6, "whole nanoseconds"
    noisy = fit_affine_quadratic(count, length, true.seconds(count, length) * rng.uniform(0.9, 1.1, 200))
    assert 0.03 < noisy.mean_relative_error < 0.07, "the residuals are those of the noise"


def test_the_fit_is_never_negative() -> None:
    fit = fit_affine_quadratic([1, 2, 3, 4], [10, 10, 10, 10], [0.1, 0.3, 0.5, 0.7])  # a line with negative offset
    assert min(fit.model.alpha, fit.model.beta, fit.model.gamma) >= 0


def test_a_fit_is_saved_and_read_back(tmp_path: Path) -> None:
    fit = fit_affine_quadratic([1, 2, 4, 8], [10, 20, 30, 9], [0.1, 0.2, 0.5, 0.3])
    fit.save(tmp_path / "cost.json")
    config = CostConfig(kind="affine_quadratic", path=str(tmp_path / "cost.json"))
    assert cost_model(config) == fit.model
    assert json.loads((tmp_path / "cost.json").read_text())["residuals"]["num_points"] == 4


def test_bad_fits(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="2 measured points"):
        fit_affine_quadratic([1, 2], [3, 4], [0.1, 0.2])
    with pytest.raises(DataError, match="must be finite and at least 1e-09"):
        fit_affine_quadratic([1, 2, 3], [3, 4, 5], [0.1, float("nan"), 0.2])
    with pytest.raises(DataError, match="distributed or virtual"):
        fit_records([{"num_microbatches": 1, "compute_s": 1.0, "mode": "simulated"}])
    (tmp_path / "cost.json").write_text('{"alpha": 1}')
    with pytest.raises(ConfigError, match=r"cost\.json.*ddpsched fit"):
        cost_model(CostConfig(kind="affine_quadratic", path=str(tmp_path / "cost.json")))


def test_costs_beyond_64_bits_are_refused() -> None:
    check_range(padded_tokens, 4096, 10**6)
    check_range(CostModel(0.1, 2e-3, 1e-6), 4096, 8192)
    for cost in (
        CostModel(1e300, 1, 0, scale=1),
        CostModel(0, 1, 1e18),
        CostModel(0, float("inf"), 0),
    ):
        with pytest.raises(ConfigError, match=r"lower cost\.alpha"):
            check_range(cost, 32, 128)


def test_a_time_too_short_to_be_measured_is_refused() -> None:
    """Its relative error would be infinite."""
    with pytest.raises(DataError, match=r"must be finite and at least 1e-09, one is 4\.94066e-324; leave out"):
        fit_affine_quadratic([1, 2, 3], [4, 5, 6], [0.1, 0.2, 5e-324])
