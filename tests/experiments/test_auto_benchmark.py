"""The table of policy auto: rows of what `ddpsched advise` printed, frozen one by one."""

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.benchmarks import auto as benchmark
from experiments.benchmarks.auto import Setting, main
from report.auto import HEADINGS, cells, outcome, summary
from report.render import tables
from report.results import Results, read_tables


def printed(chosen: str, **ratios: tuple[float, float]) -> dict[str, Any]:
    """Return an advice. ``ratios``: predicted and measured, over static's, by policy."""
    ranking = [
        {"name": name, "ratio": predicted, "band": 0.05, "step_s": 0.01 * predicted}
        for name, (predicted, _) in ratios.items()
    ]
    measured = [{"name": name, "ratio": ratio, "predicted": predicted} for name, (predicted, ratio) in ratios.items()]
    again = {"name": "static again", "ratio": 1.01, "predicted": None}
    static = {"name": "static", "ratio": 1.0, "band": 0.0, "step_s": 0.01}
    return {"chosen": chosen, "seconds": 0.03, "ranking": [*ranking, static], "measured": [again, *measured]}


def test_a_row_says_how_far_from_the_fastest() -> None:
    row = outcome([printed("balanced", balanced=(0.5, 0.6), packed=(0.8, 0.55))])
    assert (row["taken"]["ratio"], row["best"], row["least"]["ratio"]) == (0.6, "packed", 0.55)
    assert row["to_fastest"]["ratio"] == pytest.approx(0.6 / 0.55)
    assert (row["worst"], row["again"]["ratio"]) == ("packed", 1.01)
    assert row["error"] == pytest.approx(0.8 / 0.55 - 1)


def test_static_is_the_fastest_where_nothing_is_faster() -> None:
    row = outcome([printed("static", balanced=(1.1, 1.2))])
    assert (row["taken"]["ratio"], row["best"], row["least"]["ratio"]) == (1.0, "static", 1.0)


def test_what_is_taken_may_be_measured_under_a_like_name() -> None:
    """More micro-batches that do not pay are the same plans, of which one arm is measured."""
    found = printed("balanced, M = 2", balanced=(0.5, 0.6))
    found["ranking"].insert(0, {"name": "balanced, M = 2", "ratio": 0.5, "band": 0.05, "step_s": 0.005})
    assert outcome([found])["taken"]["ratio"] == 0.6


def test_the_fastest_is_so_over_all_launches_and_an_interval_is_over_them() -> None:
    """packed is the fastest of one launch by chance; balanced is over both, and was taken in one."""
    launches = [
        printed("packed", balanced=(0.5, 0.50), packed=(0.4, 0.60)),
        printed("balanced", balanced=(0.5, 0.50), packed=(0.6, 0.45)),
    ]
    row = outcome(launches)
    assert (row["best"], row["chosen"]) == ("balanced", {"packed": 1, "balanced": 1})
    to_fastest = row["to_fastest"]
    assert to_fastest["ratio"] == pytest.approx(1.2**0.5)
    assert to_fastest["low"] < 1 < to_fastest["high"]
    assert row["least"]["low"] == pytest.approx(0.5)
    assert row["error"] == pytest.approx(0.4 / 0.6 - 1)


def test_nothing_is_concluded_from_one_launch() -> None:
    alone = {"launches": [printed("balanced", balanced=(0.5, 0.6), packed=(0.8, 0.55))]}
    assert summary([alone]) == "Settings with one launch have no interval, and nothing is concluded from them."
    slower = [printed("balanced", balanced=(0.5, 0.6 + by), packed=(0.8, 0.5 + by)) for by in (0.0, 0.01)]
    assert summary([{"launches": slower}]) == (
        "Over launches, what was taken is at most 19.8 % slower than the fastest, and told apart from it in 1 of 1"
        " settings."
    )


def test_rows_are_frozen_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benchmark, "FROZEN", tmp_path / "auto")
    advice = printed("balanced", balanced=(0.5, 0.52))
    monkeypatch.setattr(Setting, "advice", lambda self, folder, output, steps: advice)
    words = ["D", "--models", "distilbert-base-uncased", "--data", "gsm8k", "--ranks", "gloo", "--shapes", "4"]
    assert main([*words, "--launches", "2", "--freeze"]) == 0
    (row,) = read_tables(tmp_path / "auto")
    assert json.loads((tmp_path / "auto" / "distilgpt2-gsm8k-gloo-4-shapes.json").read_text()) == row
    assert row["command"].endswith("--data gsm8k --ranks gloo --global-batch 32 --steps 60 --launches 2 --shapes 4")
    assert cells(row)[0] == "distilgpt2, gsm8k, 2 gloo, N = 4"
    assert [each["first_s"] for each in row["launches"]] == [0.0, 0.0]  # nothing is measured here
    assert [each["choosing"] for each in row["launches"]] == [pytest.approx(0.03 / (300 * 0.005))] * 2
    assert len(cells(row)) == len(HEADINGS)
    assert "2 of 2" in cells(row)  # 0.5 lies within 5 % of 0.52
    assert f"| {' | '.join(cells(row))} |" in capsys.readouterr().out
    page = tables(Results(autos=[row]), {}, "t")
    assert "## Policy auto" in page
    assert f"| {' | '.join(cells(row))} |" in page
    assert row["command"] in page
