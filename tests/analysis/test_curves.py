"""Losses along a run, compared with windows of samples (not of steps) computed by hand."""

import numpy as np
import pandas as pd
import pytest

from analysis.curves import curve, points


def steps(sizes: list[int], losses: list[float], seconds: float = 1.0) -> pd.DataFrame:
    size = np.array(sizes)
    table = {"num_samples": size, "num_tokens": 10 * size, "step_s": seconds, "loss_weight": size, "loss": losses}
    return pd.DataFrame(table)


def test_by_hand() -> None:
    line = curve(steps([2, 4, 2], [4.0, 2.0, 1.0], seconds=3.0))
    assert line is not None
    assert (line.end, line.end_s) == (8, 9)
    assert line.seconds_at([0, 2, 4, 8]).tolist() == [0, 3, 4.5, 9]
    assert line.seen_at([3, 4.5]).tolist() == [2, 4]
    assert line.smoothed([8, 6, 2], 2).tolist() == [1, 2, 4]
    assert line.smoothed(7.0, 2) == pytest.approx((1 * 2 + 1 * 1) / 2)  # a step may be in the window in part
    assert line.smoothed(1.0, 2) == 4  # as far as there is anything
    assert points(line, 2).tolist()[0] == 2
    assert points(line, 2)[-1] == 8


def test_the_same_samples_in_other_steps_are_the_same_curve() -> None:
    losses = np.linspace(2, 1, 24)
    ones = curve(steps([1] * 24, losses.tolist()))
    sixes = curve(steps([6] * 4, [float(part.mean()) for part in np.split(losses, 4)]))
    assert ones is not None
    assert sixes is not None
    assert ones.smoothed([12, 18, 24], 6) == pytest.approx(sixes.smoothed([12, 18, 24], 6))


def test_tokens_and_label_tokens_count_where_asked() -> None:
    table = steps([2, 2], [1.0, 3.0]).assign(loss_weight=[1, 3], num_tokens=[10, 30])
    line = curve(table, "num_tokens")
    assert line is not None
    assert line.end == 40
    assert line.smoothed(40, 40) == pytest.approx((1 + 9) / 4)


def test_no_loss_no_curve() -> None:
    assert curve(steps([2, 2], [np.nan, np.nan])) is None
    line = curve(steps([2, 2], [1.0, np.nan]))  # one step without is left out of the mean
    assert line is not None
    assert line.smoothed(4, 4) == 1
    assert np.isnan(line.smoothed(4, 2))
