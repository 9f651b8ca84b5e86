"""Arms side by side: which runs share a setting, how they are named, and what is read from them."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.axes import Axes
from synthetic import write_run

from analysis.arms import compare, tables
from analysis.comparison import main
from analysis.draw_curves import draw_curves
from analysis.load import load_study
from analysis.ratios import judged
from analysis.settings import partner, settings
from analysis.style import COLOURS, colour

ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "static": ("static", {}),
    "static (length_grouped)": ("static", {"order.kind": "length_grouped"}),
    "static (max_length)": ("static", {"data.pad_to": "max_length"}),
    "balanced": ("balanced", {}),
    "balanced (M = 4)": ("balanced", {"policy.max_microbatches": 4}),
    "token_budget": ("token_budget", {"policy.max_tokens_for_batch": 256}),
    "token_budget (linear LR)": ("token_budget", {"policy.max_tokens_for_batch": 256, "lr.kind": "linear"}),
    "token_budget (same shape)": ("token_budget", {"policy.max_tokens_for_batch": 350, "policy.same_shape": True}),
    "pool (packed)": ("pool", {"policy.max_tokens_for_batch": 107, "policy.sequence_packing": True}),
    "pool (prefer_closest)": ("pool", {"policy.max_tokens_for_batch": 143}),
    "pool (prefer_first)": ("pool", {"policy.max_tokens_for_batch": 182, "policy.strategy": "prefer_first"}),
}


def write_arms(study: Path, steps: int = 30, **given: Any) -> Path:
    for number, (policy, options) in enumerate(ARMS.values()):
        plain = {key: value for key, value in given.items() if key != "options"}
        write_run(
            study,
            policy,
            steps=steps,
            name=f"run{number}-{given.get('seed', 0)}",
            options={**given.get("options", {}), **options},
            **plain,
        )
    return study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_arms(tmp_path_factory.mktemp("outputs") / "policies")


def test_all_ways_to_put_steps_together_are_arms_of_one_setting(study: Path) -> None:
    runs = load_study(study).runs
    (setting,) = settings(runs)
    assert list(setting.arms) == list(ARMS)
    static = setting.arms["static"][0]
    assert {partner(run, runs).name for run in runs if run is not static} == {static.name}  # type: ignore[union-attr]
    assert partner(static, runs) is None


def test_orders_of_rising_difficulty_are_arms(tmp_path: Path) -> None:
    """An arm's name leaves out the options at their defaults; the study names the setting."""
    curriculum = {"order.kind": "curriculum"}
    arms: dict[str, dict[str, Any]] = {
        "static": {"order.kind": "shuffled", "order.start": 0.1},
        "static (curriculum)": curriculum | {"order.window": 1, "order.pacing": None},
        "static (curriculum, root, start = 0.2)": curriculum | {"order.pacing": "root", "order.start": 0.2},
        "static (curriculum, window = 960)": curriculum | {"order.window": 960},
        "static (curriculum_local)": {"order.kind": "curriculum_local"},
    }
    study = tmp_path / "policies-curriculum"
    for number, options in enumerate(arms.values()):
        write_run(study, "static", steps=4, name=f"run{number}", options=options)
    (setting,) = settings(load_study(study).runs)
    assert list(setting.arms) == list(arms)
    assert compare(setting).label.endswith(", curriculum")
    colours = {arm: colour(arm) for arm in arms}
    assert len(set(colours.values())) == 3, "shuffled, curriculum, by shard"


def test_budgets_are_said_where_they_alone_differ(tmp_path: Path) -> None:
    for budget in (100, 200):
        write_run(
            tmp_path / "s", "pool", steps=4, name=f"pool{budget}", options={"policy.max_tokens_for_batch": budget}
        )
    (setting,) = settings(load_study(tmp_path / "s").runs)
    assert list(setting.arms) == ["pool (max_tokens_for_batch = 100)", "pool (max_tokens_for_batch = 200)"]


def test_joined_documents_stand_beside_the_others_whatever_their_batch(tmp_path: Path) -> None:
    language = {"model.task": "causal_lm"}
    joined = language | {"data.concatenate": True, "global_batch": 12}
    write_run(tmp_path / "s", "static", steps=4, name="concatenated", options=joined)
    write_run(tmp_path / "s", "static", steps=4, name="within", options=joined | {"data.within_documents": True})
    write_run(tmp_path / "s", "static", steps=4, name="static", options=language)
    (setting,) = settings(load_study(tmp_path / "s").runs)
    assert list(setting.arms) == [
        "static",
        "static (concatenated)",
        "static (concatenated, within documents)",
    ]
    assert setting.label.startswith("G = 2, B = 32, distributed")
    assert compare(setting).unit == "num_tokens"


def test_a_table_of_all_arms(tmp_path: Path) -> None:
    study = tmp_path / "policies"
    for seed in (0, 1, 2):
        write_arms(study, seed=seed)
    for seed in (0, 1, 2):
        write_run(study, "static", steps=30, seed=seed, name=f"aa-{seed}", options={"aa": True})
    (setting,) = settings(load_study(study).runs)
    compared = compare(setting)
    found = tables(compared, judged([setting], "step_s")[0])
    assert json.loads(json.dumps(found)) == found
    rows = {row["arm"]: row for row in found["arms"]}
    assert set(rows) == {*ARMS, "A/A"}
    static, balanced = rows["static"], rows["balanced"]
    assert static["speed_ratio"] is None
    assert 1 < balanced["speed_low"] < balanced["speed_ratio"] < balanced["speed_high"]
    assert balanced["verdict"] == "faster"
    assert rows["A/A"]["verdict"] == "not told apart"
    assert balanced["same_steps"]
    grouped = rows["static (length_grouped)"]
    assert (grouped["speed_low"], grouped["verdict"]) == (
        None, "no interval: another global order: order.kind = 'length_grouped' and 'shuffled'",
    )  # fmt: skip
    assert (found["unit"], found["budget"], found["window"]) == ("num_samples", 960, 96)
    assert found["budget_s"] == min(curve.end_s for arm in compared.arms for curve in arm.curves if curve)
    assert static["loss_at_equal"] == static["final_loss"]
    assert static["loss_at_equal_s"] > static["loss_at_equal"]  # it runs fewer samples in the fastest arm's time
    assert static["seen_at_equal_s"] < 960
    assert (found["slug"], found["label"]) == ("policies-embedded-distributed-g2", "embedded, G = 2, distributed")


def test_label_tokens_weigh_the_loss_unless_samples_do(tmp_path: Path) -> None:
    for target, expected in (("token_mean", 2.5), ("sample_mean", 2.0)):
        options = {"model.task": "causal_lm", "train.target": target}
        folder = write_run(tmp_path / target, "static", steps=1, options=options)
        table = pd.read_parquet(folder / "records.parquet")
        table.assign(num_samples=16, num_targets=[1, 3], loss=[1.0, 3.0]).to_parquet(folder / "records.parquet")
        (setting,) = settings(load_study(tmp_path / target).runs)
        line = compare(setting).arms[0].curves[0]
        assert line is not None
        assert line.smoothed(line.end, line.end) == pytest.approx(expected)


def lines(ax: Axes) -> list[Any]:
    return [line for line in ax.lines if len(line.get_xdata()) > 2]


def test_the_figure_shows_every_arm_against_both(study: Path) -> None:
    compared = compare(settings(load_study(study).runs)[0])
    figure = draw_curves(compared)
    left, right = figure.axes
    assert [line.get_label() for line in lines(left)] == list(ARMS)
    assert lines(left)[0].get_color() == COLOURS["static"]
    assert len({(line.get_color(), line.get_linestyle(), str(line._dash_pattern)) for line in lines(left)}) == len(ARMS)
    assert max(lines(left)[0].get_xdata()) == compared.budget
    assert max(lines(right)[0].get_xdata()) == pytest.approx(compared.arms[0].curves[0].end_s)  # type: ignore[union-attr]
    assert left.get_xlabel() == "samples seen"


def test_several_evaluations_are_drawn_and_one_is_not(study: Path, tmp_path: Path) -> None:
    assert len(draw_curves(compare(settings(load_study(study).runs)[0])).axes) == 2
    folder = write_run(tmp_path / "s", "static", steps=8)
    text = "".join(json.dumps({"step": step, "loss": 1 / step}) + "\n" for step in (2, 4, 8))
    (folder / "evaluations.jsonl").write_text(text)
    *_, left, right = draw_curves(compare(settings(load_study(tmp_path / "s").runs)[0])).axes
    assert lines(left)[0].get_xdata().tolist() == [64, 128, 256]
    assert lines(left)[0].get_ydata().tolist() == [0.5, 0.25, 0.125]
    assert len(lines(right)[0].get_xdata()) == 3


def test_runs_without_losses_are_compared_all_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for policy in ("static", "balanced"):
        write_run(tmp_path / "s", policy, mode="simulated", steps=8)
    assert main([str(tmp_path / "s")]) == 0
    (found,) = json.loads((tmp_path / "s" / "figures" / "comparison.json").read_text())
    assert found["arms"][1]["padding"] < found["arms"][0]["padding"]
    assert found["budget"] is None
    assert main([str(tmp_path / "nothing")]) == 1
    assert "there is no such folder" in capsys.readouterr().err


def test_command(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(study)]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines()[:-1])) <= 120
    assert "pool (packed)" in out
    assert (study / "figures" / "policies-embedded-distributed-g2-loss.png").stat().st_size < 150_000
