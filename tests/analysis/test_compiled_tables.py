"""Rows of compiled arms: ratios over launches, verdicts, what compiling takes, and when it has paid."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.compiled import AGAIN, DYNAMIC, EAGER, STATIC, Arm, joined, rows, with_ratios

STEPS, LAUNCHES = 40, 3
TOO_SMALL = "a menu of one shape is too small"


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


def arms(launch: int) -> list[Arm]:
    """Return the arms of a launch: of the compiled ones one fails, one is twice as fast, and one is slower."""
    seed = 10 * launch
    return [
        Arm("static", EAGER, records=records(1.0, seed=seed)),
        Arm("static", AGAIN, records=records(1.0, seed=seed + 1)),
        Arm("auto", EAGER, records=records(0.8, seed=seed + 2), environment={"auto": {"chosen": "packed"}}),
        Arm("auto", DYNAMIC, records=records(0.8, seed=seed + 3), environment=programs((2, 8, 1, 30.0))),
        Arm("auto", STATIC, 1, TOO_SMALL) if launch == 1 else Arm("auto", STATIC, 1, records=records(1.0)),
        Arm("auto", STATIC, 2, None, records(0.4, 220, "size mismatch", seed + 4), programs((4, 8, 1, 9.0))),
        Arm("auto", STATIC, 4, None, records(1.2, 250, None, seed + 5), programs((4, 8, 0, 0.01), (2, 9, 1, 6.0))),
    ]


def launches(number: int = LAUNCHES) -> list[list[dict[str, Any]]]:
    return [rows(arms(launch), start_s=5.0 + launch) for launch in range(number)]


def by_key(found: list[dict[str, Any]]) -> dict[tuple[str, str, int | None], dict[str, Any]]:
    return {(row["policy"], row["kind"], row["shapes"]): row for row in found}


def test_rows_of_launches() -> None:
    (policy,) = with_ratios([{"policy": "auto", "rows": joined(launches())}])
    found = by_key(policy["rows"])
    assert [*found] == [(arm.policy, arm.kind, arm.shapes) for arm in arms(0)]
    again, eager = found["static", AGAIN, None], found["auto", EAGER, None]
    assert again["to_static"]["low"] < 1 < again["to_static"]["high"]
    assert again["step_is"] == "not told apart"
    assert eager["to_static"]["ratio"] == pytest.approx(0.8, rel=0.01)  # the slow first steps are left out
    assert eager["step_s"] == pytest.approx(0.8, rel=0.01)
    assert (eager["chosen"], eager["compile_s"], eager["to_dynamic"], eager["step_is"]) == ("packed", None, None, None)
    dynamic, two, four = (found["auto", *each] for each in ((DYNAMIC, None), (STATIC, 2), (STATIC, 4)))
    assert (dynamic["compile_s"], dynamic["step_is"]) == (35.0, "not told apart from A/A")
    assert (two["step_is"], two["num_recompiled"], two["computed_per_real"]) == ("faster", LAUNCHES, 2.2)
    assert two["to_eager"]["ratio"] == pytest.approx(0.5, rel=0.01)
    assert two["to_eager"]["low"] < 0.5 < two["to_eager"]["high"]
    assert two["to_static"]["ratio"] == pytest.approx(0.4, rel=0.01)
    even = two["break_even_steps"]
    assert even["steps"] == pytest.approx((5.0 + 9.0) / 0.4, rel=0.02)
    assert even["low"] < even["steps"] < even["high"]
    assert four["compile_s"] == 5.0 + 9.0 + 6.0  # the first shape as if no other arm had compiled it
    assert (four["step_is"], four["break_even_steps"]) == ("slower", None)
    failed = found["auto", STATIC, 1]
    assert failed["failed"] == TOO_SMALL  # in the second launch
    assert failed["to_static"] is failed["step_s"] is failed["compile_s"] is failed["launches_s"] is None


def test_one_launch_has_no_verdict() -> None:
    (policy,) = with_ratios([{"policy": "auto", "rows": joined(launches(1))}])
    two = by_key(policy["rows"])["auto", STATIC, 2]
    assert two["step_is"] == "no interval: 1 launch, at least 2 are needed"
    assert (two["to_eager"]["low"], two["break_even_steps"]) == (None, None)


def test_without_a_baseline_the_policys_own_is_left() -> None:
    alone = [[launch[2], launch[5]] for launch in launches()]
    (policy,) = with_ratios([{"policy": "auto", "rows": joined(alone)}])
    own, compiled = policy["rows"]
    assert own["to_static"] is compiled["to_static"] is compiled["to_dynamic"] is None
    assert compiled["to_eager"]["ratio"] == pytest.approx(0.5, rel=0.01)
    assert compiled["step_is"] == "no interval of A/A: it did not run"


def test_verdicts_of_all_policies_are_one_family() -> None:
    """An effect that holds alone, barely, does not beside a hundred arms without any."""

    def timed(seconds: float, seed: int) -> list[list[float]]:
        rng = np.random.default_rng(seed)
        return [(seconds * shift * rng.normal(1, 1e-4, STEPS)).tolist() for shift in (1.0, 1.01, 0.98)]

    def policy(ratio: float, seed: int) -> dict[str, Any]:
        named = [("static", EAGER, 1.0), ("static", AGAIN, 1.0), ("balanced", EAGER, 1.0), ("balanced", DYNAMIC, ratio)]
        blank = dict.fromkeys(("shapes", "failed", "chosen", "num_recompiled", "computed_per_real"))
        return {"rows": [
            blank | {"policy": name, "kind": kind, "compile_s": 1.0 if kind == DYNAMIC else None, "launches_s": [
                (np.array(each) * (shift if kind == DYNAMIC else 1.0)).tolist()
                for each, shift in zip(timed(seconds, seed + place), (1.0, 1.02, 0.98), strict=True)
            ]}
            for place, (name, kind, seconds) in enumerate(named)
        ]}  # fmt: skip

    effect, nothing = policy(0.92, 0), [policy(1.0, 10 * seed) for seed in range(1, 101)]
    assert with_ratios([effect])[0]["rows"][-1]["step_is"] == "faster"
    assert with_ratios([effect, *nothing])[0]["rows"][-1]["step_is"] == "not told apart from A/A"
