"""A policy is compared with static over steps in turn, and one disturbed step does not carry their ratio."""

from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from ddpsched.advise import measured


def test_a_step_that_the_machine_held_up_does_not_count() -> None:
    """Neither one of the policy's nor one of static's; else it is the ratio of the means."""
    static_s = np.linspace(1.0, 2.0, 40)
    arm = 0.5 * static_s
    assert measured.compared("arm", arm, static_s, None).ratio == pytest.approx(0.5)
    held_up, static_held_up = arm.copy(), static_s.copy()
    held_up[[3, 30]] += 20.0
    static_held_up[[8, 17]] += 20.0
    assert measured.compared("arm", held_up, static_held_up, None).ratio == pytest.approx(0.5)
    held_up[[20, 21]] += 20.0
    assert measured.compared("arm", held_up, static_held_up, None).ratio > 1, "four of forty are no accident"
    few = measured.compared("arm", np.array([1.0, 3.0]), np.array([1.0, 1.0]), None)
    assert (few.ratio, few.low, few.high) == (2.0, 1.5, 2.5)


def test_the_table_says_whether_each_prediction_held() -> None:
    console = Console(width=120, record=True, file=StringIO())
    rows = [
        measured.Measured("static again", 1.01, 0.99, 1.03, None),
        measured.Measured("balanced", 0.8, 0.75, 0.85, 0.75),
        measured.Measured("packed", 0.5, 0.45, 0.55, 0.6),
    ]
    console.print(measured.table(rows))
    again, balanced, packed = (line for line in console.export_text().splitlines() if "0." in line)
    assert "A/A" in again
    assert "the prediction held: -6.2%" in balanced
    assert "0.750 to 0.850" in balanced
    assert "the prediction did not hold: +20.0%" in packed
