"""Metrics agree with numbers worked out by hand, and figures show their data."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from synthetic import write_arm, write_run

from analysis.__main__ import main
from analysis.draw import draw_run
from analysis.figures import FIGURES, ecdf, per_step_lines
from analysis.load import load_run, load_study
from analysis.metrics import length_distances, paired, pearson, per_step, ratio_of_means, summarise, warmup_steps
from analysis.run_files import clean
from analysis.settings import partner, settings
from analysis.style import COLOURS
from analysis.tables import read, study_tables
from ddpsched.errors import DataError

PRINTED = ("8-outline", "9-step-parts", "10-speeds", "11-tradeoffs")
ROOT = Path(__file__).parents[2]


def tiny() -> pd.DataFrame:
    """Return records of two ranks and three steps; the first step is warm-up."""
    rows = [
        # step, rank, num_samples, num_tokens, padded, predicted, compute, wait, step_s, plan_wait, loss, memory
        (0, 0, 2, 10, 12, 12, 9.0, 0.0, 10.0, 5.0, 1.0, 100),
        (0, 1, 2, 6, 8, 8, 9.0, 0.0, 10.0, 5.0, 1.0, 100),
        (1, 0, 1, 8, 8, 8, 3.0, 1.0, 5.0, 0.1, 2.0, 120),
        (1, 1, 3, 9, 12, 12, 4.0, 0.0, 5.0, 0.3, 1.0, 140),
        (2, 0, 3, 6, 9, 9, 2.0, 0.0, 3.0, 0.1, 0.5, 130),
        (2, 1, 1, 5, 5, 5, 1.0, 1.0, 3.0, 0.1, 1.5, 110),
    ]
    names = "step rank num_samples num_tokens padded_tokens predicted_cost compute_s wait_s step_s plan_wait_s loss"
    table = pd.DataFrame(rows, columns=[*names.split(), "peak_memory_bytes"])
    return clean(table.assign(world_size=2, global_batch=4, mode="distributed", policy="minmax", run="tiny"))


def test_metrics_by_hand() -> None:
    row = summarise(tiny())
    assert (row["num_steps"], row["warmup_steps"]) == (3, 1)
    assert row["max_compute_mean_s"] == pytest.approx((4 + 2) / 2)
    assert row["max_compute_p95_s"] == pytest.approx(2 + 0.95 * 2)
    assert row["step_mean_s"] == pytest.approx(4)
    assert row["samples_per_s"] == pytest.approx(8 / 8)
    assert row["tokens_per_s"] == pytest.approx(28 / 8)
    assert row["samples_per_s_cv"] == pytest.approx(np.std([4 / 5, 4 / 3]) / np.mean([4 / 5, 4 / 3]))
    assert row["compute_std_s"] == pytest.approx(0.5)  # of 3 and 4, of 2 and 1
    assert row["padded_std_tokens"] == pytest.approx((2 + 2 + 2) / 3)  # every step, warm-up too
    assert row["memory_std_bytes"] == pytest.approx(10)
    assert row["memory_max_bytes"] == 140
    virtual = summarise(tiny().assign(mode="virtual"))
    assert math.isnan(virtual["memory_std_bytes"]), "ranks that take turns in one process have no spread of memory"
    assert virtual["memory_max_bytes"] == 140
    assert row["wait_share"] == pytest.approx(2 / 16)
    assert row["compute_imbalance"] == pytest.approx((4 / 3.5 + 2 / 1.5) / 2)
    assert row["padded_imbalance"] == pytest.approx((12 / 10 + 12 / 10 + 9 / 7) / 3)
    assert row["yardstick"] == pytest.approx((12 + 12 + 9) / (44 / 2))
    assert row["padding_efficiency"] == pytest.approx(44 / 54)
    assert row["plan_wait_mean_s"] == pytest.approx((0.3 + 0.1) / 2)
    assert row["plan_wait_share"] == pytest.approx(0.4 / 8)
    assert row["cost_time_r"] == pytest.approx(pearson([8, 12, 9, 5], [3, 4, 2, 1]))
    assert row["heaviest_share"] == 1
    assert row["length_drift"] == pytest.approx(((17 + 11) / 8) / (16 / 4) - 1)
    assert row["count_length_r"] < 0  # short samples share a rank
    assert np.isnan(row["max_cpu_mean_s"])
    assert np.isnan(row["dev_accuracy"])


def test_loss_of_a_step_is_the_sample_mean() -> None:
    assert per_step(tiny())["loss"].tolist() == pytest.approx([1.0, (2 + 3) / 4, (1.5 + 1.5) / 4])


def test_null_stays_null_and_is_never_zero() -> None:
    row = summarise(clean(tiny().drop(columns=["compute_s", "step_s", "wait_s", "plan_wait_s", "loss"])))
    for name in (
        "max_compute_mean_s",
        "step_mean_s",
        "samples_per_s",
        "wait_share",
        "plan_wait_share",
        "compute_std_s",
    ):
        assert np.isnan(row[name]), name
    assert row["yardstick"] == pytest.approx(1.5)


def test_missing_required_column_is_named() -> None:
    with pytest.raises(DataError, match="padded_tokens"):
        clean(tiny().drop(columns="padded_tokens"))


def test_warmup() -> None:
    assert [warmup_steps(n) for n in (1, 2, 50, 51, 300)] == [0, 1, 1, 5, 5]


def test_ratio_interval() -> None:
    rng = np.random.default_rng(3)
    shared = rng.lognormal(size=200)
    ratio, low, high = ratio_of_means(0.8 * shared + rng.normal(0, 0.01, 200), shared, np.random.default_rng(0))
    assert low < 0.8 < high
    assert high - low < 0.01  # pairing takes the shared variation out
    assert ratio == pytest.approx(0.8, abs=0.01)
    assert ratio_of_means(0.5 * shared, shared, rng) == pytest.approx((0.5, 0.5, 0.5))
    first = ratio_of_means(shared[::-1], shared, np.random.default_rng(1))
    assert first == ratio_of_means(shared[::-1], shared, np.random.default_rng(1))
    assert np.isnan(ratio_of_means(np.array([]), np.array([]), rng)).all()


def test_pairs_by_step_over_what_both_measured() -> None:
    steps = per_step(tiny())
    x, y = paired([steps], [steps.drop(index=1)], "max_padded_tokens")
    assert (x.tolist(), y.tolist()) == ([12, 9], [12, 9])
    assert len(paired([steps], [steps], "step_s")[0]) == 2  # a timing column loses its warm-up step


def test_length_distances() -> None:
    steps = per_step(tiny())
    same = length_distances(tiny(), tiny(), steps, steps)
    assert (same["step_length_ks"], same["rank_length_ks"]) == (0, 0)
    longer = tiny().assign(num_tokens=lambda t: t["num_tokens"] * 100)
    assert length_distances(longer, tiny(), per_step(longer), steps)["step_length_ks"] == 1


def test_study_names_what_it_leaves_out(tmp_path: Path) -> None:
    study = tmp_path / "study"
    write_run(study, "static", steps=6)
    write_run(study, "minmax", steps=6, state="failed")
    write_run(study, "balanced", steps=6, state="running")
    (study / "stray").mkdir()
    (study / "stray" / "config.toml").write_text("")
    found = load_study(study)
    assert [run.policy for run in found.runs] == ["static"]
    assert found.left_out["minmax-distributed-g2-s0"] == "failed: it was stopped"
    assert found.left_out["balanced-distributed-g2-s0"].startswith("failed: it was killed"), "nobody holds its lock"
    assert "never started" in found.left_out["stray"]


def test_a_run_that_never_began_is_left_out_by_name(tmp_path: Path) -> None:
    """A launcher's log is all that there is of it; a folder with a status alone was cut off as it began."""
    study = tmp_path / "study"
    write_run(study, "static", steps=6)
    for name, file, text in (
        ("lost", "logs/launcher.log", "error: data.path = /nowhere.tsv: no such file\n"),
        ("cut", "status.json", '{"state": "failed", "reason": "it was killed"}'),
        ("figures", "a.txt", ""),
    ):
        (study / name / file).parent.mkdir(parents=True)
        (study / name / file).write_text(text)
    reason = "it never began: data.path = /nowhere.tsv: no such file; see logs/launcher.log"
    assert load_study(study).left_out == {"lost": reason, "cut": "failed: it was killed"}


def test_a_damaged_run_is_left_out_with_its_reason(tmp_path: Path) -> None:
    """Its records cut off, of an old schema or absent, or its evaluations cut off."""
    study = tmp_path / "study"
    arms = ("static", "minmax", "balanced", "packed", "split")
    whole, short, old, gone, cut = (write_run(study, arm, steps=6) for arm in arms)
    records = short / "records.parquet"
    records.write_bytes(records.read_bytes()[:-100])
    pd.read_parquet(old / "records.parquet").drop(columns="padded_tokens").to_parquet(old / "records.parquet")
    for file in gone.glob("records*"):
        file.unlink()
    with (cut / "evaluations.jsonl").open("a") as file:
        file.write('{"step": 7, "lo')
    found = load_study(study)
    assert [run.path for run in found.runs] == [whole]
    says = {short: "cannot be read", old: "records lack padded_tokens", gone: "no such file"}
    for folder, words in says.items():
        assert words in found.left_out[folder.name], folder.name
    assert re.search(r"evaluations.jsonl, line \d+: it ends in the middle", found.left_out[cut.name])
    assert main([str(study)]) == 0
    assert json.loads((study / "figures" / "tables.json").read_text())["left_out"] == found.left_out


def test_empty_study_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError, match="no finished run"):
        load_study(tmp_path)
    assert main([str(tmp_path)]) == 1
    assert "no finished run" in capsys.readouterr().err


def test_further_seeds_may_have_fewer_steps(tmp_path: Path) -> None:
    """They are launches of the same setting; what is learnt is told by the seeds that have all steps."""
    for seed, steps in ((0, 80), (1, 30), (2, 30)):
        for policy in ("static", "balanced"):
            write_run(tmp_path / "study", policy, seed=seed, steps=steps)
    (setting,) = settings(load_study(tmp_path / "study").runs)
    assert [run.seed for run in setting.arms["balanced"]] == [0, 1, 2]
    (table,) = study_tables([setting])
    row = next(row for row in table["ratios"] if (row["arm"], row["column"]) == ("balanced", "step_s"))
    assert (row["num_launches"], row["num_steps"]) == (3, 75 + 29 + 29)
    learnt = {run["run"]: run["dev_loss"] for run in table["runs"] if run["arm"] == "balanced"}
    assert list(learnt.values()) == [0.4, None, None]
    write_run(tmp_path / "study", "static", seed=0, steps=30, name="short")
    found = settings(load_study(tmp_path / "study").runs)
    assert len(found) == 2, "of one seed, runs of other steps are other work"


def test_settings_never_mix_and_partners_match(tmp_path: Path) -> None:
    study = tmp_path / "study"
    for seed in (0, 1):
        for policy in ("static", "minmax"):
            write_run(study, policy, seed=seed, steps=6)
    write_run(study, "static", steps=6, mode="virtual", world_size=4)
    runs = load_study(study).runs
    found = settings(runs)
    assert [setting.slug for setting in found] == ["study-distributed-g2-b32", "study-virtual-g4-b32"]
    assert {arm: len(arm_runs) for arm, arm_runs in found[0].arms.items()} == {"static": 2, "minmax": 2}
    for run in runs:
        other = partner(run, runs)
        assert (other is None) == (run.policy == "static")
        assert other is None or (other.seed, other.mode) == (run.seed, run.mode)


def test_arms_of_one_policy_are_told_apart(tmp_path: Path) -> None:
    for prefetch in (24, 48):
        folder = write_run(tmp_path / str(prefetch), "minmax", steps=4, prefetch=prefetch)
        folder.rename(tmp_path / f"run{prefetch}")
    arms = settings([load_run(tmp_path / "run24"), load_run(tmp_path / "run48")])[0].arms
    assert list(arms) == ["minmax (K = 24)", "minmax (K = 48)"]


def test_figures_show_the_data(tmp_path: Path) -> None:
    steps = {"static": per_step(tiny()), "minmax": per_step(tiny()).assign(std_peak_memory_bytes=np.nan)}
    ax = per_step_lines(steps, "max_compute_s", 1e3, Figure().subplots())
    raw = [line for line in ax.lines if line.get_alpha()]
    assert raw[0].get_xdata().tolist() == [0, 1, 2]
    assert raw[0].get_ydata().tolist() == [9000, 4000, 2000]
    assert [line.get_color() for line in raw] == [COLOURS[arm].lower() for arm in ("static", "minmax")]
    stairs = ecdf(steps, "step_s", 1.0, Figure().subplots(), "s").lines[0]
    assert stairs.get_xdata()[1:].tolist() == [3, 5, 10]
    assert stairs.get_ydata()[-1] == 1


def test_memory_of_virtual_ranks_is_that_of_the_largest() -> None:
    for mode, words in (("distributed", "std over ranks"), ("virtual", "largest rank")):
        (ax,) = FIGURES["4-memory-spread"]({"static": per_step(tiny().assign(mode=mode))}, "").axes
        assert ax.get_ylabel().startswith(words)
        assert ax.lines[0].get_ydata()[-1] * 2**20 == pytest.approx(10 if mode == "distributed" else 130)


def test_panels_say_what_is_absent() -> None:
    measured, absent = per_step(tiny()), per_step(tiny()).assign(std_peak_memory_bytes=np.nan)
    column = "std_peak_memory_bytes"
    one = per_step_lines({"static": measured, "minmax": absent}, column, 1.0, Figure().subplots())
    assert one.get_xlabel().endswith("not measured: minmax")
    none = per_step_lines({"minmax": absent}, column, 1.0, Figure().subplots())
    assert "not measured in these runs" in [text.get_text() for text in none.texts]
    zero = per_step_lines({"minmax": measured.assign(std_step_s=0.0)}, "std_step_s", 1.0, Figure().subplots())
    assert [text.get_text() for text in zero.texts] == ["0 in every step"]


def test_a_giant_step_does_not_flatten_the_rest() -> None:
    table = pd.DataFrame({"step_s": [100.0] + [1.0] * 299}, index=range(300))
    ax = per_step_lines({"static": table}, "step_s", 1.0, Figure().subplots())
    assert ax.get_ylim()[1] < 2
    assert "1 step, up to 100" in ax.get_xlabel()


def test_command_writes_figures_and_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = tmp_path / "study"
    for policy in ("static", "balanced"):
        write_arm(study, policy, aa=policy == "static", drop=("cpu_s",))
    assert main([str(study)]) == 0
    out = capsys.readouterr().out
    assert "balanced (3)" in out
    assert re.search(r"A/A +1\.0\d\d .*not told apart +\n +\(0\.9", out)
    assert re.search(r"balanced +0\.\d\d\d .* faster +\n +\(0\.\d\d\d–0\.\d\d\d\) ", out)
    assert "P95 needs 34 steps a launch for an interval, P99 167; this study has 55" in out
    assert max(map(len, out.splitlines()[:-1])) <= 120
    names = sorted(f"study-distributed-g2-b32-{name}.png" for name in [*FIGURES, "6-ratios", *PRINTED])
    assert sorted(path.name for path in (study / "figures").glob("*.png")) == names
    assert all(path.stat().st_size < 150_000 for path in study.rglob("*.png"))
    assert len(list((study / "balanced-distributed-g2-s0" / "figures").glob("*.png"))) == len(FIGURES)
    tables = read(study / "figures")["settings"][0]
    assert [row["arm"] for row in tables["arms"]] == ["static", "A/A", "balanced"]
    assert tables["arms"][0]["max_cpu_mean_s"] is None
    ratio = next(r for r in tables["ratios"] if (r["arm"], r["column"]) == ("balanced", "max_compute_s"))
    assert ratio["low"] < ratio["ratio"] < ratio["high"] < 1
    assert len(pd.read_csv(study / "figures" / "tables.csv")) == 9


def test_tables_pool_seeds(tmp_path: Path) -> None:
    for seed in (0, 1):
        for policy in ("static", "minmax"):
            write_run(tmp_path / "study", policy, seed=seed, steps=20)
    (tables,) = study_tables(settings(load_study(tmp_path / "study").runs))
    assert json.loads(json.dumps(tables)) == tables
    assert [row["num_runs"] for row in tables["arms"]] == [2, 2]
    assert {row["num_steps"] for row in tables["ratios"] if row["column"] == "step_s"} == {2 * 19}


@pytest.mark.slow
def test_notebook_runs_as_a_script_and_converts(tmp_path: Path) -> None:
    jupytext = pytest.importorskip("jupytext")
    run = write_run(tmp_path / "study", "minmax", steps=8)
    write_run(tmp_path / "study", "static", steps=8)
    notebook = ROOT / "analysis" / "notebooks" / "run.py"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(notebook), str(run)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "partner: static-distributed-g2-s0" in done.stdout
    assert len(list((run / "figures").glob("*.png"))) == len(FIGURES)
    cells = jupytext.read(notebook).cells
    jupytext.write(jupytext.read(notebook), tmp_path / "run.ipynb")
    assert json.loads((tmp_path / "run.ipynb").read_text())["nbformat"] == 4
    assert {cell.cell_type for cell in cells} == {"markdown", "code"}


def test_run_without_partner_is_drawn_alone(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path / "study", "minmax", steps=3))
    assert all(path.exists() for path in draw_run(run, None))
