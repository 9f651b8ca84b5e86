"""Which times are compared, in which pairs, above which noise; and the same on the command line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from synthetic import ENVIRONMENT, SEEDS, write_arm, write_run

from analysis import ratios
from analysis.compare_runs import compared
from analysis.load import load_study
from analysis.metrics import per_step, warmup_steps
from analysis.ratios import Compared, baseline_of, between_steps, compare, judged, pairs, refusal
from analysis.settings import Setting, settings
from analysis.stats import Ratio
from ddpsched.command_exit import guarded
from ddpsched.errors import DataError
from ddpsched.monitor.commands import print_comparison


def setting_of(study: Path) -> Setting:
    (setting,) = settings(load_study(study).runs)
    return setting


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write static, twice; packed, as minmax three times slower; and a curriculum."""
    folder = tmp_path_factory.mktemp("outputs") / "study"
    write_arm(folder, "static", aa=True)
    write_arm(folder, "balanced")
    write_arm(folder, "minmax", slower=3.0)
    write_arm(folder, "static", name="curriculum", options={"order.kind": "curriculum"})
    return folder


def by_arm(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["arm"]: row for row in rows}


def test_a_ratio_is_that_of_means_over_the_steps_that_both_ran(study: Path) -> None:
    setting = setting_of(study)
    found = compare(setting, "balanced", "static", "step_s", np.random.default_rng(0))
    logs = []
    for seed in SEEDS:
        mine, other = (per_step(setting.arms[arm][seed].records)["step_s"] for arm in ("balanced", "static"))
        first = warmup_steps(len(mine))
        logs.append(np.log(mine.iloc[first:].mean() / other.iloc[first:].mean()))
    assert found.ratio.value == pytest.approx(np.exp(np.mean(logs)), rel=1e-12)
    assert found.ratio.low < found.ratio.value < found.ratio.high < 1
    assert (found.num_launches, found.num_steps) == (3, 3 * 55)
    assert abs(found.rho) < 0.3
    assert 60 < found.effective <= 3 * 55


def test_time_is_per_token_where_steps_hold_other_samples(study: Path) -> None:
    """minmax draws other samples, 3 % fewer tokens or more; the ratio is of seconds a token."""
    setting = setting_of(study)
    found = compare(setting, "minmax", "static", "step_s", np.random.default_rng(0))
    logs = []
    for seed in SEEDS:
        (x, a), (y, b) = (
            per_step(setting.arms[arm][seed].records).iloc[5:][["step_s", "num_tokens"]].sum()
            for arm in ("minmax", "static")
        )
        logs.append(np.log((x / a) / (y / b)))
    assert found.ratio.value == pytest.approx(np.exp(np.mean(logs)), rel=1e-12)


def test_verdicts_stand_above_the_noise_of_the_baseline_run_twice(study: Path) -> None:
    setting = setting_of(study)
    assert baseline_of(setting) == "static"
    assert list(setting.arms)[:3] == ["static", "static (curriculum)", "A/A"]
    rows = by_arm(judged([setting], "step_s")[0])
    assert rows["A/A"]["verdict"] == "not told apart"
    assert rows["balanced"]["verdict"] == "faster"
    assert rows["minmax"]["verdict"] == "slower"
    assert rows["static (curriculum)"]["verdict"].startswith("no interval: another global order")
    assert judged([setting], "step_s") == judged([setting], "step_s"), "the generator's seed is explicit"


def planted(a_a: Ratio, arm: Ratio, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every comparison of the A/A run find ``a_a``, and those of other arms ``arm``."""

    def found(_: Setting, label: str, baseline: str, column: str, __: np.random.Generator) -> Compared:
        each = a_a if label == "A/A" else arm
        return Compared(label, baseline, column, each, each, each)

    monkeypatch.setattr(ratios, "compare", found)


def of_t(value: float, error: float) -> Ratio:
    return Ratio(value, value * np.exp(-2.1 * error), value * np.exp(2.1 * error), error, freedom=20)


def test_all_settings_of_a_page_are_one_family(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting of its own has three arms, and each p-value passes three times as large, but not twelve times."""
    setting, doubtful = setting_of(study), of_t(0.9, 0.037)
    assert 3 * doubtful.p() < 0.05 < 12 * doubtful.p()
    planted(of_t(1.0, 0.001), doubtful, monkeypatch)
    (alone,) = judged([setting], "step_s")
    assert [row["verdict"] for row in alone if row["arm"] != "A/A"] == ["faster"] * 3
    page = [row["verdict"] for rows in judged([setting] * 4, "step_s") for row in rows if row["arm"] != "A/A"]
    assert page == ["not told apart from A/A"] * 12


def test_all_a_a_runs_of_a_page_are_one_family(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting, doubtful = setting_of(study), of_t(0.95, 0.021)
    assert doubtful.p() < 0.03 < 2 * doubtful.p()
    planted(doubtful, of_t(0.5, 0.001), monkeypatch)
    assert by_arm(judged([setting], "step_s")[0])["A/A"]["verdict"] == "differs"
    assert [by_arm(rows)["A/A"]["verdict"] for rows in judged([setting] * 2, "step_s")] == ["not told apart"] * 2


@pytest.mark.parametrize(
    ("margins", "verdict"),
    [
        ((0.05,), "the same within 5 %"),
        ((None,), "the same within 2 %"),
        ((0.002,), "not told apart from A/A"),  # A/A is from 0.998 to 1.0024
        ((0.05, 0.04), "the same within 4 %"),
    ],
)
def test_the_margin_is_what_the_study_stated(tmp_path: Path, margins: tuple[float | None, ...], verdict: str) -> None:
    """The stricter one of a page's settings; 2 % where none stated any."""
    for number, margin in enumerate(margins):
        given: dict[str, Any] = {"world_size": 2 + 2 * number}
        write_arm(tmp_path / "study", "static", name=f"run-{number}", aa=True, **given)
        write_arm(tmp_path / "study", "static", name=f"rate-{number}", options={"lr.kind": "linear"}, **given)
        for path in (tmp_path / "study").glob(f"*-{number}-s*/environment.json"):
            environment = json.loads(path.read_text())
            environment["launch"]["margin"] = margin
            path.write_text(json.dumps(environment))
    page = judged(settings(load_study(tmp_path / "study").runs), "step_s")
    assert [by_arm(rows)["static (linear LR)"]["verdict"] for rows in page] == [verdict] * len(margins)


def test_quantiles_have_intervals_where_launches_have_the_steps(tmp_path: Path, study: Path) -> None:
    row = by_arm(judged([setting_of(study)], "step_s")[0])["A/A"]
    assert row["p95_low"] <= row["p95_ratio"] <= row["p95_high"]
    assert (row["least_steps"], row["p99_ratio"]) == (55, pytest.approx(1, abs=0.5))
    assert np.isnan([row["p99_low"], row["p99_high"]]).all()
    for number, aa in enumerate((False, True)):
        for seed in SEEDS:
            write_run(tmp_path / "study", "static", seed, 172, name=f"{number}-{seed}", options={"aa": aa})
    setting = setting_of(tmp_path / "study")
    (row,) = judged([setting], "step_s")[0]
    assert row["least_steps"] == 167, "5 are left out"
    logs = [
        np.log(np.divide(*(per_step(run.records)["step_s"].iloc[5:].quantile(0.99, "linear") for run in couple)))
        for couple in zip(setting.arms["A/A"], setting.arms["static"], strict=True)
    ]
    assert row["p99_ratio"] == pytest.approx(np.exp(np.mean(logs)), rel=0.02)
    assert row["p99_low"] < row["p99_ratio"] < row["p99_high"]


def test_without_a_second_run_of_the_baseline_there_is_no_verdict(tmp_path: Path) -> None:
    for policy in ("static", "balanced"):
        write_arm(tmp_path / "study", policy)
    (row,) = judged([setting_of(tmp_path / "study")], "step_s")[0]
    assert row["verdict"] == "no interval of A/A: it did not run"
    assert row["low"] < row["high"], "the interval of the ratio itself is there"


def test_one_seed_or_one_step_has_no_interval(tmp_path: Path) -> None:
    for steps, seeds, reason in ((30, (0,), "1 launch, at least 2"), (2, SEEDS, "1 steps in a launch, at least 8")):
        folder = tmp_path / str(steps)
        for seed in seeds:
            for number, policy in enumerate(("static", "static", "balanced")):
                options = {"aa": True} if number == 1 else {}
                write_run(folder, policy, seed=seed, steps=steps, name=f"run{number}-{seed}", options=options)
        rows = by_arm(judged([setting_of(folder)], "step_s")[0])
        assert rows["balanced"]["low"] is None or np.isnan(rows["balanced"]["low"])
        assert reason in rows["balanced"]["verdict"]
        assert reason in rows["A/A"]["verdict"]
        assert rows["balanced"]["ratio"] < 1


@pytest.mark.parametrize(
    ("options", "environment", "reason", "remedy"),
    [
        (
            {"order.kind": "length_grouped"}, {}, "another global order: order.kind = 'length_grouped' and 'shuffled'",
            "run both on the same data, in the same order",
        ),
        ({"data.size": 99}, {}, "another data: data.size = 99", "run both with the same data.size, in one study"),
        ({}, {"launch": None}, "not run in turn", "run them in turn, in one study"),
        ({}, {"launch": {"how": "interleaved", "id": "later"}}, "of two launches", "run them in turn, in one study"),
    ],
)  # fmt: skip
def test_other_data_order_or_launches_are_not_compared(
    tmp_path: Path, options: dict[str, Any], environment: dict[str, Any], reason: str, remedy: str
) -> None:
    study = tmp_path / "study"
    write_run(study, "static")
    write_run(study, "balanced", options=options, environment=environment)
    static, balanced = (next(r for r in load_study(study).runs if r.policy == kind) for kind in ("static", "balanced"))
    assert refusal(static, static) is None
    assert reason in str(refusal(balanced, static))
    with pytest.raises(DataError, match=rf"not compared: .*{remedy}"):
        compared(static.path, [balanced.path])


def test_simulated_times_are_computed(tmp_path: Path) -> None:
    for policy in ("static", "balanced"):
        write_arm(tmp_path / "study", policy, mode="simulated")
    setting = setting_of(tmp_path / "study")
    (row,) = judged([setting], "step_s")[0]
    assert row["reason"] == "computed times"
    assert np.isnan(row["low"])
    launches = [
        pairs(setting.arms["balanced"][seed].steps, setting.arms["static"][seed].steps, "step_s")
        for seed in range(len(setting.arms["static"]))
    ]
    logs = [each.log_ratio(0.95) for each in launches if each is not None]
    assert row["p95_ratio"] == pytest.approx(np.exp(np.mean(logs)))
    assert row["p95_ratio"] != pytest.approx(row["ratio"], rel=1e-3)


def test_the_command_compares_any_arm_with_any_other(
    study: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = {policy: study / f"{policy}-distributed-g2-s0" for policy in ("static", "balanced", "minmax")}
    print_comparison(run["static"], [run["balanced"]], json=False)
    out = capsys.readouterr().out
    assert "times over static's" in out
    assert "not told apart" in out
    assert "faster" in out
    print_comparison(run["balanced"], [run["static"]], json=True)
    (table,) = json.loads(capsys.readouterr().out)
    rows = by_arm([row for row in table["ratios"] if row["column"] == "step_s"])
    assert set(rows) == {"static", "A/A (static)"}
    assert rows["static"]["verdict"] == "slower"
    print_comparison(study, [], json=True)
    (table,) = json.loads(capsys.readouterr().out)
    assert table["baseline"] == "static"
    assert len(by_arm(table["ratios"])) == 4


def test_settings_without_a_comparison_are_named_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "study"
    write_arm(folder, "static", aa=True)
    write_arm(folder, "balanced")
    write_arm(folder, "static", world_size=4)
    for policy in ("balanced", "packed"):
        write_arm(folder, policy, name=f"{policy}-64", options={"global_batch": 64})
    print_comparison(folder, [], json=False)
    printed = capsys.readouterr().out
    assert printed.count("times over static's") == 1
    assert "\nnot compared, static is the only arm: G = 4" in printed
    assert "\nnot compared, no arm is the baseline: G = 2, B = 64" in printed
    (table,) = compared(folder)
    assert len(table["notes"]) == 2
    assert len(table["ratios"]) == 4


def test_runs_that_are_left_out_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that failed, and one that never began."""
    for policy in ("static", "balanced"):
        write_run(tmp_path / "study", policy, steps=9, name=policy)
    write_run(tmp_path / "study", "packed", steps=2, name="stopped", state="failed")
    log = tmp_path / "study" / "lost" / "logs" / "launcher.log"
    log.parent.mkdir(parents=True)
    log.write_text("error: a mistake\n")
    notes = [
        "left out: study/lost: it never began: a mistake; see logs/launcher.log",
        "left out: study/stopped: failed: it was stopped",
    ]
    for folders in ([], [tmp_path / "study" / "balanced"]):
        first = tmp_path / "study" / "static" if folders else tmp_path / "study"
        print_comparison(first, folders, json=True)
        (table,) = json.loads(capsys.readouterr().out)
        assert table["notes"] == notes
        print_comparison(first, folders, json=False)
        printed = capsys.readouterr().out
        assert all(note in printed for note in notes)


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        (["absent"], "absent: no such folder"),
        (["static", "absent"], "absent: no such folder"),
        (["static", "empty"], "empty: no finished run"),
        (["static", "failed"], "failed: failed: it was stopped"),
        (["static", "lost"], "lost: it never began: a mistake; see logs/launcher.log"),
        (
            ["static", "larger"],
            "did other work: global_batch = 64 and 32; not compared: run both with the same global_ba",
        ),
        (["static", "seed1"], "share no seed"),
        (["."], "not compared, balanced is the only arm: G = 2, B = 64, distributed, cpu; name a run"),
        (["."], "to compare with (left out: study/failed: failed: it was stopped; left out: study/lost: it never"),
        (["."], "not compared, no arm is the baseline: G = 2, B = 32"),
    ],
)
def test_the_command_refuses(
    tmp_path: Path, folders: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tmp_path / "study"
    kind = "balanced" if folders == ["."] else "static"
    write_run(study, kind, name="static", steps=9)
    if kind == "balanced":
        write_run(study, "packed", steps=9)
    write_run(study, "balanced", name="failed", state="failed", steps=2)
    write_run(study, "balanced", name="larger", steps=9, options={"global_batch": 64})
    write_run(study, "packed", name="seed1", steps=9, seed=1)
    (study / "empty").mkdir()
    (study / "lost" / "logs").mkdir(parents=True)
    (study / "lost" / "logs" / "launcher.log").write_text("error: a mistake\n")
    code = guarded(lambda: print_comparison(study / folders[0], [study / name for name in folders[1:]], json=False))
    assert code == 1
    assert message in capsys.readouterr().err


def test_the_time_between_steps_is_what_no_run_took(tmp_path: Path) -> None:
    """Two arms' steps in turn, 5 ms after each; virtual ranks' steps take what all ranks computed."""
    for mode in ("distributed", "virtual"):
        for number, aa in enumerate((False, True)):
            folder = write_run(tmp_path / mode, "static", mode=mode, steps=6, name=f"run{number}", options={"aa": aa})
            path = folder / "records.parquet"
            records = pd.read_parquet(path).assign(step_s=0.2, compute_s=0.045, optimizer_s=0.11 - 5e-5)
            took = 0.2 if mode == "distributed" else 0.2 - 5e-5
            records["unix_s"] = 1e6 + (2 * records["step"] + number) * (took + 0.005)
            records.to_parquet(path)
        gap, share = between_steps(setting_of(tmp_path / mode)) or (0, 0)
        assert gap == pytest.approx(0.005, abs=1e-4), mode
        assert share == pytest.approx(gap / 0.2, rel=0.01)


def test_records_of_earlier_versions_are_read(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "study", "static", steps=4)
    records = pd.read_parquet(folder / "records.parquet").drop(columns=["unix_s", "steal_s"])
    records.to_parquet(folder / "records.parquet")
    (folder / "environment.json").write_text(json.dumps(ENVIRONMENT))
    (run,) = load_study(tmp_path / "study").runs
    assert per_step(run.records)["unix_s"].isna().all()
