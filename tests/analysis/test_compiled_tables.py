"""Rows of compiled arms: ratios, what compiling takes, and when it has paid."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.compiled import AGAIN, DYNAMIC, EAGER, NOT_TOLD_APART, STATIC, Arm, noise_band, rows

STEPS = 40


def records(step_s: float, padded: int = 200, recompiled: str | None = None, seed: int = 0) -> pd.DataFrame:
    """Return the records of two ranks; the first steps, which do not count, take ten times as long."""
    noise = np.random.default_rng(seed).normal(1.0, 0.02, STEPS)
    lines = [
        {
            "step": step, "rank": rank, "step_s": step_s * noise[step] * (10.0 if step < 4 else 1.0),
            "padded_tokens": padded, "num_tokens": 100, "recompiled": recompiled if step == rank == 0 else None,
        }
        for step in range(STEPS)
        for rank in range(2)
    ]  # fmt: skip
    return pd.DataFrame(lines)


def programs(*made: tuple[int, int, int, float]) -> dict[str, Any]:
    """Return an environment with programs of (rows, length, parts, seconds)."""
    names = ("rows", "length", "parts", "seconds")
    return {"compile": {"programs": [dict(zip(names, each, strict=True)) for each in made]}}


ARMS = [
    Arm("static", EAGER, records=records(1.0)),
    Arm("static", AGAIN, records=records(1.0, seed=1)),
    Arm("auto", EAGER, records=records(0.8), environment={"auto": {"chosen": "packed"}}),
    Arm("auto", DYNAMIC, records=records(0.8, seed=2), environment=programs((2, 8, 1, 30.0))),
    Arm("auto", STATIC, 1, failed="a menu of one shape is too small"),
    Arm("auto", STATIC, 2, records=records(0.4, 220, "size mismatch"), environment=programs((4, 8, 1, 9.0))),
    Arm("auto", STATIC, 4, records=records(1.2, 250), environment=programs((4, 8, 0, 0.01), (2, 9, 1, 6.0))),
]


def test_rows_of_a_launch() -> None:
    found = {(row["policy"], row["kind"], row["shapes"]): row for row in rows(ARMS, start_s=5.0)}
    assert [*found] == [(arm.policy, arm.kind, arm.shapes) for arm in ARMS]
    again, eager = found["static", AGAIN, None], found["auto", EAGER, None]
    assert noise_band([*found.values()]) == (min(1, again["to_static"]["low"]), max(1, again["to_static"]["high"]))
    assert eager["to_static"]["ratio"] == pytest.approx(0.8)  # the slow first steps are left out
    assert (eager["chosen"], eager["compile_s"], eager["to_dynamic"], eager["step_is"]) == ("packed", None, None, None)
    dynamic, two, four = (found["auto", *each] for each in ((DYNAMIC, None), (STATIC, 2), (STATIC, 4)))
    assert (dynamic["compile_s"], dynamic["step_is"]) == (35.0, NOT_TOLD_APART)
    assert (two["step_is"], two["num_recompiled"], two["computed_per_real"]) == ("faster", 1, 2.2)
    assert two["to_eager"]["ratio"] == pytest.approx(0.5)
    assert two["to_static"]["ratio"] == pytest.approx(0.4)
    assert two["break_even_steps"] == pytest.approx((5.0 + 9.0) / 0.4, rel=0.02)
    assert four["compile_s"] == 5.0 + 9.0 + 6.0  # the first shape as if no other arm had compiled it
    assert (four["step_is"], four["break_even_steps"]) == ("slower", None)
    failed = found["auto", STATIC, 1]
    assert failed["failed"] == "a menu of one shape is too small"
    assert failed["to_static"] is failed["step_s"] is failed["compile_s"] is None


def test_without_a_baseline_the_policys_own_is_left() -> None:
    own, compiled = rows([ARMS[2], ARMS[5]])
    assert own["to_static"] is compiled["to_static"] is compiled["to_dynamic"] is None
    assert compiled["to_eager"]["ratio"] == pytest.approx(0.5)
    assert compiled["break_even_steps"] == pytest.approx(9.0 / 0.4, rel=0.02)
