"""Throughput over static's is the inverse of the ratios of times, and its figures can be read."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from drawn import drawn_texts, faults, same_bytes
from synthetic import write_arm, write_run

from analysis.draw import save
from analysis.draw_print import draw_print
from analysis.draw_speeds import draw_speeds
from analysis.draw_tradeoffs import draw_tradeoffs
from analysis.load import load_study
from analysis.settings import Setting, settings
from analysis.speeds import floor, speeds
from analysis.tables import plain, study_tables
from analysis.tradeoffs import tradeoffs

TABLE: dict[str, Any] = {
    "baseline": "static",
    "arms": [{"arm": name, "samples_per_s": 100.0} for name in ("static", "A/A", "packed", "balanced", "bins")]
    + [{"arm": "batch_rebalance", "samples_per_s": None}],
    "ratios": [
        {"arm": arm, "baseline": "static", "column": "step_s", **numbers}
        for arm, *four in (
            ("A/A", 1.01, 0.98, 1.04, "not told apart"),
            ("packed", 0.4, 0.32, 0.5, "faster"),
            ("balanced", 0.5, 0.5, 0.5, "not told apart from A/A"),
            ("batch_rebalance", 2.0, None, None, "no interval: 1 launch, at least 2 are needed"),
        )
        for numbers in [dict(zip(("ratio", "low", "high", "verdict"), four, strict=True))]
    ]
    + [{"arm": "packed", "baseline": "minmax", "column": "step_s", "ratio": 9.0, "low": 9.0, "high": 9.0}],
}  # fmt: skip


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Setting, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("speeds") / "study"
    for policy in ("static", "minmax", "balanced"):
        write_arm(folder, policy, aa=policy == "static")
    found = settings(load_study(folder).runs)
    return found[0], study_tables(found)[0]


def test_speeds_by_hand() -> None:
    found = speeds(TABLE)
    assert list(found["arm"]) == ["static", "batch_rebalance", "balanced", "packed", "bins", "A/A"]
    rows = found.set_index("arm")
    assert rows.loc["static", ["speed", "low", "high"]].tolist() == [1, 1, 1]
    assert rows.loc["packed", ["speed", "low", "high"]].tolist() == pytest.approx([2.5, 2.0, 3.125])
    assert np.isnan(rows.loc["bins", "speed"])
    assert floor(found) == pytest.approx((1 / 1.04, 1 / 0.98))
    assert floor(found[found["arm"] != "A/A"]) is None


def test_bars_tell_noise_from_results(tmp_path: Path) -> None:
    found = {"one setting": speeds(TABLE), "another": speeds(TABLE)}
    figure = draw_speeds(found)
    assert not faults(figure)
    words = {text.get_text() for text, _ in drawn_texts(figure)}
    assert {"2.50 ×  (100/s)", "2.00 ×  (100/s)", "0.50 ×, no interval", "not measured"} <= words
    bars = {round(bar.get_width(), 2): bar for bar in figure.axes[0].patches if hasattr(bar, "get_width")}
    assert bars[2.0].get_facecolor()[:3] == (1, 1, 1), "not told apart: outlined"
    assert bars[2.5].get_facecolor()[:3] != (1, 1, 1)
    table = next(iter(found.values()))
    halves = table.assign(**(table[["speed", "low", "high"]].astype("float64") / 2))
    assert len({ax.get_xlim() for ax in draw_speeds({"whole": table, "half": halves}).axes}) == 1
    frozen = {heading: pd.DataFrame(plain(table)) for heading, table in found.items()}
    save(draw_speeds(found), tmp_path / "measured.png")
    save(draw_speeds(frozen), tmp_path / "frozen.png")
    assert (tmp_path / "measured.png").read_bytes() == (tmp_path / "frozen.png").read_bytes()


def test_tradeoffs_of_a_study(study: tuple[Setting, dict[str, Any]], tmp_path: Path) -> None:
    found = tradeoffs(*study)
    assert list(found["arm"]) == ["static", "minmax", "balanced"]
    assert found["peak_bytes"].isna().all(), "arms took turns: the peak is that of all of them"
    assert found["order_bias"].abs().max() < 0.2
    assert found["speed"].is_monotonic_increasing
    assert not faults(draw_tradeoffs(found))
    assert same_bytes(lambda: draw_tradeoffs(found, "a title"), tmp_path)


def test_peaks_of_processes_of_their_own(tmp_path: Path) -> None:
    launch = {"how": "processes", "id": "one", "margin": 0.02}
    for policy in ("static", "balanced"):
        write_run(tmp_path / "study", policy, environment={"launch": launch})
    (setting,) = settings(load_study(tmp_path / "study").runs)
    found = tradeoffs(setting, plain(study_tables([setting]))[0])
    (run,) = setting.arms["static"]
    assert found["peak_bytes"].iloc[0] == run.records["peak_memory_bytes"].max()
    assert not faults(draw_tradeoffs(found))


def test_many_arms_and_arms_without_memory() -> None:
    options = ("", " (W = 4)", " (M = 4)")
    arms = [f"{policy}{option}" for policy in ("static", "balanced", "packed", "pool") for option in options]
    speed = np.linspace(0.6, 2.4, len(arms))
    found = pd.DataFrame({"arm": arms, "speed": speed, "low": speed - 0.1, "high": speed + 0.1})
    figure = draw_tradeoffs(found.assign(order_bias=np.linspace(0, 1, len(arms)) ** 2, peak_bytes=np.nan))
    assert not faults(figure)
    assert "peak memory of a rank (MiB)" not in {text.get_text() for text, _ in drawn_texts(figure)}


def test_planned_arms_beside_measured_ones() -> None:
    """Every arm is a point; the names are those that are asked for."""
    arms = ["static", "balanced", "lhotse", "padded to the longest"]
    made = pd.DataFrame({"arm": arms, "speed": [1.0, 2.2, 2.6, 0.6], "low": np.nan, "high": np.nan})
    planned = made.assign(order_bias=[0.0, 0.0, 0.98, 0.0], named=[True, True, True, False])
    figure = draw_tradeoffs(made.head(2).assign(order_bias=0.0, peak_bytes=[2**30, 2**29]), planned=planned)
    bias, memory = figure.axes
    assert [len([line for line in ax.lines if line.get_marker() == "o"]) for ax in (bias, memory)] == [4, 2]
    names = {text.get_text() for text, _ in drawn_texts(figure)}
    assert set(arms[:3]) <= names
    assert arms[3] not in names
    assert not faults(figure)


def test_figures_of_a_setting_are_written(study: tuple[Setting, dict[str, Any]], tmp_path: Path) -> None:
    setting, table = study
    written = [path.name.removeprefix(f"{setting.slug}-") for path in draw_print(setting, table, tmp_path)]
    assert written == ["8-outline.png", "9-step-parts.png", "10-speeds.png", "11-tradeoffs.png"]
    alone = Setting("alone", "one arm", {"balanced": setting.arms["balanced"]})
    names = [path.name for path in draw_print(alone, {"baseline": None}, tmp_path)]
    assert names == ["alone-8-outline.png", "alone-9-step-parts.png"]
