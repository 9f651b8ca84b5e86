"""`ddpsched plan` as called by users: its table, JSON and files, its refusals, and the figures of real data."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from plan_commands import ARMS, COUNTS, FITTED, SAME, SIZES, call, fill, rows
from typer.testing import CliRunner

import ddpsched
from ddpsched.cli import app


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("plan"))


def test_every_arm_by_default(folder: Path) -> None:
    by_arm = rows(folder)
    assert list(by_arm) == ARMS
    for arm, row in by_arm.items():
        assert (row["dropped"], row["repeated"], row["skipped"]) == (0, 0, None)
        assert row["steps"] == 32 or (arm in FITTED and abs(row["steps"] - 32) <= 4)
        assert row["planning_us"] > 0
    yardsticks = [by_arm[arm]["yardstick"] for arm in ("padded to the longest", *SAME)]
    assert yardsticks == sorted(yardsticks, reverse=True)
    assert min(row["yardstick"] for row in by_arm.values()) >= 1
    assert by_arm["token_budget"]["yardstick"] > by_arm["pool"]["yardstick"] > by_arm["pool, packed"]["yardstick"]
    assert by_arm["static, length_grouped"]["order_bias"] > 0.8
    assert by_arm["balanced"]["gap"] == pytest.approx(0, abs=1e-9)
    assert by_arm["packed"]["padding_efficiency"] == 1
    same = {round(by_arm[arm]["order_bias"], 9) for arm in SAME if arm != "minmax"}
    assert len(same) == 1, "these train the same global batches"


def test_every_arm_beside_static(folder: Path) -> None:
    """The same samples in each step are the same gradient; orders and sizes of their own are another."""
    by_arm = rows(folder, "--peer", "fairseq", "--peer", "karmarkar_karp")
    same = {arm for arm, row in by_arm.items() if row["same_gradient"]}
    assert same == {"padded to the longest", *SAME, "karmarkar_karp"} - {"minmax"}
    for row in by_arm.values():
        assert row["times_static"] == pytest.approx(row["yardstick"] / by_arm["static"]["yardstick"])
    alone = rows(folder, "--policy", "balanced")["balanced"]
    assert (alone["times_static"], alone["same_gradient"]) == (by_arm["balanced"]["times_static"], True)
    assert {arm: row["package"] for arm, row in by_arm.items() if row["package"]} == dict.fromkeys(
        ("fairseq", "karmarkar_karp"), "ddpsched's reimplementation"
    )


def test_the_last_line_recommends(folder: Path) -> None:
    last = call(folder).stdout.splitlines()[-3:]
    words = " ".join(" ".join(last).split())
    assert "recommended: balanced, at 0." in words
    assert "balanced, M = 4 at 0." in words
    assert "packed at 0." in words
    assert call(folder, "--policy", "pool").stdout.splitlines()[-1].startswith("recommended: none, as no arm")
    alone = call(folder, "--policy", "static").stdout.splitlines()[-1]
    assert alone == "recommended: static, at 1.000 times the cost of static and with its gradient"
    packed = call(folder, "--policy", "packed").stdout.splitlines()[-1]
    assert packed.startswith("recommended: packed at 0.")
    assert packed.endswith(" where the model takes packed rows")


def test_lengths_that_are_all_the_same_need_no_policy() -> None:
    table = ddpsched.plan([7] * 64, world_size=2, global_batch=8)
    assert table.recommendation == "recommended: static, at 1.000 times the cost of static and with its gradient"


def test_the_table_as_a_value(folder: Path) -> None:
    lengths = np.load(folder / "lengths.npy")
    table = ddpsched.plan(lengths, world_size=4, global_batch=32, peer="fairseq")
    frame, by_arm = table.to_frame(), rows(folder, "--peer", "fairseq")
    assert list(frame.index) == list(by_arm)
    for name in ("yardstick", "imbalance", "times_static", "dropped", "same_gradient"):
        assert frame[name].tolist() == [row[name] for row in by_arm.values()]
    assert str(table).splitlines()[-1].strip() in " ".join(call(folder, "--peer", "fairseq").stdout.split())
    named = ddpsched.plan(lengths, world_size=4, global_batch=32, policy="balanced", max_microbatches=3)
    assert [row.arm for row in named.rows] == ["balanced, M = 3"]
    with pytest.raises(ddpsched.ConfigError, match="global_batch = 3 is smaller than world_size = 4"):
        ddpsched.plan(lengths, world_size=4, global_batch=3)


def test_samples_that_are_cut_are_counted(folder: Path, tmp_path: Path) -> None:
    lengths = np.load(folder / "lengths.npy")
    title = call(folder, "--policy", "static", "--max-length", "20").stdout.splitlines()[0]
    assert f"lengths.npy ({(lengths > 20).sum()} cut to 20 tokens): 1,003 samples" in title
    pd.DataFrame({"input_ids": [[1] * n for n in lengths]}).to_parquet(tmp_path / "lengths.npy.parquet")
    words = [str(tmp_path / "lengths.npy.parquet"), *SIZES, "--policy", "static", "--json"]
    tokenised = json.loads(CliRunner().invoke(app, ["plan", *words]).stdout)["rows"][0]
    assert tokenised["yardstick"] == rows(folder, "--policy", "static")["static"]["yardstick"]


def test_more_arms_with_a_lookahead_and_fewer_without_micro_batches(folder: Path) -> None:
    ahead = [*ARMS[:6], "balanced, W = 3", "balanced, M = 4, W = 3", "packed, W = 3", *ARMS[6:]]
    assert list(rows(folder, "--lookahead", "3")) == ahead
    assert list(rows(folder, "--max-microbatches", "2")) == [arm.replace("4", "2") for arm in ARMS]
    assert list(rows(folder, "--max-microbatches", "1")) == [arm for arm in ARMS if "M = " not in arm]


def test_named_policies(folder: Path) -> None:
    words = ["--policy", "balanced", "--policy", "static", "--max-microbatches", "3"]
    assert list(rows(folder, *words)) == ["balanced, M = 3", "static"]


@pytest.mark.parametrize("policy", ["minmax", "packed", "token_budget", "bins", "pool"])
def test_a_policy_by_name_is_the_one_of_the_whole_table(folder: Path, policy: str) -> None:
    named, every = (rows(folder, *words)[policy] for words in (("--policy", policy), ()))
    assert {key: named[key] for key in COUNTS} == {key: every[key] for key in COUNTS}
    assert named["options"] == every["options"]


def test_the_table_says_what_the_json_says(folder: Path) -> None:
    words = ["--policy", "static", "--policy", "balanced", "--policy", "packed"]
    lines = call(folder, *words).stdout.splitlines()
    assert "1,003 samples" in lines[0]
    for arm, row in rows(folder, *words).items():
        line = next(line for line in lines if line.split()[:1] == [arm])
        cells = line.split()
        assert cells[1] == f"{row['yardstick']:.4f}"
        assert cells[2] == f"{row['times_static']:.3f}"
        assert cells[3] == f"{row['padding_efficiency']:.1%}"
        assert cells[4] == f"{row['imbalance']:.3f}"
    shared = " ".join(lines).split("all arms:")[1]
    assert "dropped 0, repeated 0, steps 32" in " ".join(shared.split())


def test_the_same_words_give_the_same_figures_and_another_seed_others(folder: Path) -> None:
    once, again, other = (rows(folder, "--seed", seed) for seed in ("1", "1", "2"))
    for arm in ARMS:
        assert [once[arm][name] for name in COUNTS] == [again[arm][name] for name in COUNTS]
        if arm not in ("padded to the longest", "pool, packed"):  # their micro-batches have the same size in any order
            assert once[arm]["yardstick"] != other[arm]["yardstick"]


def test_alpha_and_gamma_are_planned_for_and_charged(folder: Path) -> None:
    """A high cost per micro-batch makes them few; without padding each sample's length is squared."""
    words = ["--policy", "balanced", "--max-microbatches", "4"]
    few, many = (rows(folder, *words, "--alpha", alpha)["balanced, M = 4"] for alpha in ("500", "1"))
    assert few["microbatches"] < many["microbatches"]
    assert few["yardstick"] > many["yardstick"]
    plain, squared = (rows(folder, "--policy", "static", "--gamma", gamma)["static"] for gamma in ("0", "0.1"))
    assert squared["yardstick"] > plain["yardstick"], "padding costs more than its tokens"


def test_peers_stand_beside_them(folder: Path) -> None:
    by_arm = rows(folder, "--policy", "static", "--peer", "fairseq", "--peer", "deepspeed")
    assert list(by_arm) == ["static", "fairseq", "deepspeed"]
    assert by_arm["fairseq"]["yardstick"] < by_arm["static"]["yardstick"]
    assert by_arm["fairseq"]["order_bias"] > 0.1
    assert by_arm["deepspeed"]["skipped"] is None or "pip install" in by_arm["deepspeed"]["skipped"]
    if by_arm["deepspeed"]["skipped"]:
        text = call(folder, "--policy", "static", "--peer", "deepspeed").stdout
        assert "deepspeed: skipped: deepspeed is not installed; pip install" in " ".join(text.split())


def test_in_a_calibrations_time(folder: Path) -> None:
    words = ["--calibration", str(folder / "calibration.json")]
    by_arm = rows(folder, *words)
    assert list(by_arm) == ARMS
    for row in by_arm.values():
        assert row["step_seconds"] > 1e-3
    assert by_arm["packed"]["step_seconds"] < by_arm["balanced"]["step_seconds"] < by_arm["static"]["step_seconds"]


def test_within_a_memory(folder: Path) -> None:
    """Memory holds 300 padded tokens beside the model, too few for static, which is skipped with the reason."""
    words = ["--calibration", str(folder / "calibration.json"), "--memory", "1300000"]
    by_arm = rows(folder, *words)
    assert "static gives each rank 8 of 32 samples" in by_arm["static"]["skipped"]
    assert "static: skipped" in call(folder, *words).stdout
    path = folder / "capped.parquet"
    assert call(folder, *words, "--policy", "balanced", "--max-microbatches", "4", "--export", str(path)).exit_code == 0
    each = pd.read_parquet(path).groupby(["step", "rank", "microbatch"])
    assert each.pad_to.sum().max() <= 300
    refused = call(folder, *words, "--policy", "static")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "memory" in refused.stderr


def test_no_arm_fits_the_memory(folder: Path, tmp_path: Path) -> None:
    """Nothing is drawn, and the message names the arms."""
    words = ["--calibration", str(folder / "calibration.json"), "--memory", "1000001"]
    result = call(folder, *words, "--figure", str(tmp_path / "none.png"))
    assert isinstance(result.exception, SystemExit | None), result.exception
    assert "static" in result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "arm"),
    [
        (["balanced", "--max-microbatches", "3"], "balanced, M = 3"),
        (["packed"], "packed"),
        (["balanced", "--lookahead", "4"], "balanced, W = 4"),
        (["minmax"], "minmax"),
        (["static"], "static"),
    ],
)
def test_the_exported_plan_has_the_yardstick_that_is_printed(
    folder: Path, tmp_path: Path, words: list[str], arm: str
) -> None:
    path = tmp_path / "plan.parquet"
    row = rows(folder, "--policy", *words, "--epochs", "2", "--seed", "3", "--export", str(path))[arm]
    table, lengths = pd.read_parquet(path), np.load(folder / "lengths.npy")
    assert list(table) == ["epoch", "step", "rank", "microbatch", "position", "id", "length", "pad_to"]
    assert (table.length == lengths[table.id]).all()
    longest = table.groupby(["step", "rank", "microbatch"]).length.transform("max")
    assert (table.pad_to == (table.length if arm == "packed" else longest)).all()
    paid = table.groupby(["step", "rank"]).pad_to.sum()
    assert paid.groupby("step").max().sum() / (table.length.sum() / 4) == pytest.approx(row["yardstick"], rel=1e-12)
    assert table.length.sum() / table.pad_to.sum() == pytest.approx(row["padding_efficiency"])
    for _, epoch in table.groupby("epoch"):
        assert sorted(epoch.id) == list(range(1003))
    assert table.groupby("step").size().max() == 32
    first, second = (rows_of.id.tolist() for _, rows_of in table.groupby("epoch"))
    assert first != second, "every epoch is shuffled anew"
    assert sorted(path.parent.iterdir()) == [path]


def test_an_export_as_csv_has_the_same_rows(folder: Path, tmp_path: Path) -> None:
    for name in ("plan.csv", "plan.parquet"):
        assert call(folder, "--policy", "balanced", "--export", str(tmp_path / name)).exit_code == 0
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "plan.csv"), pd.read_parquet(tmp_path / "plan.parquet"))


def test_an_export_is_the_same_each_time_and_another_for_another_seed(folder: Path, tmp_path: Path) -> None:
    tables = []
    for name, seed in (("a", "5"), ("b", "5"), ("c", "6")):
        path = tmp_path / f"{name}.parquet"
        result = call(folder, "--policy", "balanced", "--seed", seed, "--export", str(path))
        assert "1,003 rows written to" in " ".join(result.stdout.split())
        tables.append(pd.read_parquet(path))
    pd.testing.assert_frame_equal(tables[0], tables[1])
    assert not tables[0].equals(tables[2])


def test_an_export_that_fails_leaves_what_was_there(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "plan.parquet"
    path.write_text("older")
    monkeypatch.setattr("pyarrow.parquet.ParquetWriter.write_table", full)
    result = call(folder, "--policy", "static", "--export", str(path))
    assert result.exit_code == 1
    assert "no space left" in result.stderr
    assert sorted(tmp_path.iterdir()) == [path]
    assert path.read_text() == "older"


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_figure(folder: Path, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"figure.{suffix}"
    assert call(folder, "--figure", str(path)).exit_code == 0
    if suffix == "png":
        import matplotlib.image

        image = matplotlib.image.imread(path)
        assert min(image.shape[:2]) > 300
        assert image[..., :3].std() > 0.1
    elif suffix == "svg":
        assert "</svg>" in path.read_text(encoding="utf-8")
    else:
        assert path.read_bytes().startswith(b"%PDF")
