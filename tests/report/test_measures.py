"""One rule tells ratios apart from noise: their family's p-values, and the reach of A/A."""

from types import SimpleNamespace
from typing import Any

import pytest

from report.conclusions import claim_of_less, failed, judged
from report.measures import beside_floor, over_launches, told_apart

FLOOR = {"ratio": 1.0, "low": 0.98, "high": 1.02, "num_launches": 5}


def row(ratio: float, low: float, high: float) -> dict[str, Any]:
    return {"ratio": ratio, "low": low, "high": high, "num_launches": 5}


def test_a_small_p_value_of_many_is_no_difference() -> None:
    mine = row(0.92, 0.87, 0.979)  # p is about 0.02
    assert told_apart([(mine, FLOOR)]) == [True]
    assert told_apart([(mine, FLOOR), *[(row(1.0, 0.97, 1.03), FLOOR)] * 4]) == [False] * 5


def test_a_difference_within_the_reach_of_noise_is_none() -> None:
    assert told_apart([(row(1.015, 1.014, 1.016), FLOOR)]) == [False]
    assert told_apart([(row(1.03, 1.029, 1.031), FLOOR)]) == [True]


def test_without_an_interval_nothing_is_told_apart() -> None:
    one_launch = {"ratio": 0.5, "low": None, "high": None, "num_launches": 1}
    assert told_apart([(one_launch, FLOOR), (row(0.9, 0.89, 0.91), {}), (row(0.9, 0.89, 0.91), FLOOR)]) == [
        False, False, True,
    ]  # fmt: skip


def test_a_time_within_its_own_noise_is_named_so() -> None:
    rows = [
        {"arm": "balanced", "baseline": "static", "column": "max_compute_s", "ratio": 0.9, "low": 0.81, "high": 0.99},
        {"arm": "A/A", "baseline": "static", "column": "max_compute_s", "ratio": 1.06, "low": 0.82, "high": 1.36},
    ]
    found = beside_floor({"ratios": rows}, "balanced", "static", "max_compute_s")
    assert found["verdict"] == "not told apart from A/A"
    del rows[1]
    assert "verdict" not in beside_floor({"ratios": rows}, "balanced", "static", "max_compute_s")


def test_conclusions_that_do_not_hold_are_counted_by_kind() -> None:
    names = ["packed-p95", "packed-wait-p95", "minmax-wait-p95", "static-proxy", "balanced-below-batch_rebalance"]
    found = [{"id": f"{name}@virtual", "holds": False} for name in names]
    found += [{"id": "packed-step@virtual", "holds": True}, {"id": "packed-step@gloo", "holds": None}]
    assert failed(found) == {
        "the P95 of waits for plans": 2, "a lower P95 of step times": 1, "predicted cost tracks compute time": 1,
        "shorter steps than batch_rebalance's": 1,
    }  # fmt: skip


def test_times_of_arms_that_ran_apart_are_undecided_within_their_noise() -> None:
    wide = {**FLOOR, "low": 0.82, "high": 1.36}

    def held(apart: bool, found: dict[str, Any], floor: dict[str, Any] | None = None) -> bool | None:
        table = {"slug": "memory-virtual-g4-b32"}
        setting = SimpleNamespace(arms={}, runs=[SimpleNamespace(study="memory")])
        measured = SimpleNamespace(apart=apart, table=table, study="memory", name="memory", setting=setting)
        return judged(measured, claim_of_less(measured, "packed-step", "packed is faster", found, floor))["holds"]  # type: ignore[arg-type]

    within, below = row(0.9, 0.8, 0.99), row(0.5, 0.4, 0.6)
    assert (held(False, within, wide), held(True, within, wide)) == (False, None)
    assert (held(False, below, wide), held(True, below, wide)) == (True, True)
    words = {**within, "verdict": "not told apart from A/A"}, {**row(1.5, 1.4, 1.6), "verdict": "slower"}
    assert [held(True, each) for each in words] == [None, False]
    assert held(True, {"ratio": 0.9, "low": None, "high": None}) is None


def test_intervals_over_launches() -> None:
    assert over_launches([]) == {"ratio": None, "low": None, "high": None}
    assert over_launches([0.5]) == {"ratio": 0.5, "low": None, "high": None}
    found = over_launches([1.0, 2.0, 3.0])
    assert found["ratio"] == 2.0
    assert found["low"] == pytest.approx(2 - 4.303 / 3**0.5, abs=1e-3)
