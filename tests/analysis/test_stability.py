"""Gradient norms and rises of the loss, computed by hand."""

import numpy as np
import pandas as pd
import pytest

from analysis.curves import curve
from analysis.stability import KEYS, largest_rise, stability


def steps_of(losses: list[float], norms: list[float | None]) -> pd.DataFrame:
    size = len(losses)
    return pd.DataFrame(
        {
            "num_samples": [10] * size,
            "step_s": [1.0] * size,
            "loss": losses,
            "loss_weight": [10.0] * size,
            "grad_norm": norms,
        }
    )


def test_by_hand() -> None:
    steps = steps_of([4.0, 2.0, 3.0, 1.0, 1.0], [100.0, 1.0, 2.0, 3.0, 6.0])
    found = stability(steps, curve(steps), window=10)
    assert found["grad_norm"] == 2.5, "the first step is left out"
    assert found["grad_norm_peak"] == pytest.approx(6 / 2.5)
    assert found["grad_norm_cv"] == pytest.approx(np.std([1, 2, 3, 6]) / 3)
    assert found["loss_rise"] == pytest.approx(1.5, rel=0.02)


def test_what_was_not_measured() -> None:
    steps = steps_of([float("nan")] * 3, [None] * 3)
    found = stability(steps, curve(steps), window=10)
    assert list(found) == list(KEYS)
    assert np.isnan(list(found.values())).all()


def test_a_loss_that_only_falls_does_not_rise() -> None:
    assert largest_rise(np.array([3.0, 2.0, 2.0, 0.5])) == 1.0
    assert np.isnan(largest_rise(np.array([np.nan])))
