"""The fit of the compiled model's times: a fixed part and a factor, from seconds of the same micro-batches."""

import numpy as np
import pytest

from ddpsched.costs.calibration import Seconds
from ddpsched.training.trial_times import _fit_compiled

PADDED = Seconds(alpha=1e-3, beta=1e-5, gamma=1e-8, delta=1e-6, floor=0.0)


def test_a_fixed_part_and_a_factor_are_found() -> None:
    eager = np.array([2e-3, 8e-3, 30e-3])
    cost, error = _fit_compiled(PADDED, eager, 1e-3 + 0.5 * eager)
    assert error == pytest.approx(0, abs=1e-9)
    assert (cost.alpha, cost.beta, cost.gamma, cost.delta) == pytest.approx((1.5e-3, 5e-6, 5e-9, 5e-7))
    assert cost.floor == 0
    floored, _ = _fit_compiled(PADDED.model_copy(update={"floor": 4e-3}), eager, 1e-3 + 0.5 * eager)
    assert floored.floor == pytest.approx(3e-3)


def test_what_fits_no_line_is_in_the_error() -> None:
    eager = np.array([2e-3, 8e-3, 30e-3])
    _, error = _fit_compiled(PADDED, eager, np.array([1e-3, 8e-3, 15e-3]))
    assert error > 0.2


def test_a_smaller_call_is_no_negative_time() -> None:
    """Where compiling saves a fixed part, the factor alone fits, and no cost is below zero."""
    eager = np.array([2e-3, 8e-3, 30e-3])
    cost, error = _fit_compiled(PADDED, eager, eager - 1e-3)
    assert min(cost.model_dump().values()) >= 0
    assert error > 0.1
