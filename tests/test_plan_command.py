"""`ddpsched plan` as it is called: its table and JSON, its files, what it refuses, and the figures of real data."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from ddpsched.cli import app
from ddpsched.compare import Question, compare
from ddpsched.costs.calibration import Bytes, Calibration, Identity, Residuals, Seconds
from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.data.length_files import read_lengths

SIZES = ["--world-size", "4", "--global-batch", "32"]
SAME = ["static", "minmax", "balanced", "balanced, M = 4", "packed"]  # of B samples in every step, in this order
FITTED = ["token_budget", "bins", "pool", "pool, packed"]  # of B samples on average
ARMS = ["padded to the longest", *SAME, *FITTED, "static, length_grouped"]
COUNTS = ("yardstick", "padding_efficiency", "imbalance", "order_bias", "samples_cv", "microbatches", "gap")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lengths like SST-2's, no multiple of the global batch, and a calibration."""
    folder = tmp_path_factory.mktemp("plan")
    np.save(folder / "lengths.npy", sst2_lengths(1003, np.random.default_rng(0)))
    off = Residuals(train_mean=0, train_max=0, held_out_mean=0, held_out_max=0, worst_underestimate=0)
    calibration = Calibration(
        identity=Identity(model="tiny", max_length=128), versions={}, seconds_residuals=off, bytes_residuals=off,
        seconds=Seconds(alpha=1e-3, beta=1e-4, gamma=1e-7, delta=0, floor=0), points=[],
        bytes=Bytes(base=1e6, per_sample=0, per_token=1000, per_square=0),
    )  # fmt: skip
    (folder / "calibration.json").write_text(calibration.model_dump_json(), encoding="utf-8")
    return folder


def call(folder: Path, *words: str, sizes: list[str] = SIZES) -> Result:
    return CliRunner().invoke(app, ["plan", str(folder / "lengths.npy"), *sizes, *words])


def rows(folder: Path, *words: str, **rest: Any) -> dict[str, dict[str, Any]]:
    """The rows of --json by arm."""
    result = call(folder, *words, "--json", **rest)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["rows"]
    assert len({row["arm"] for row in found}) == len(found)
    return {row["arm"]: row for row in found}


def test_every_arm_by_default(folder: Path) -> None:
    found = rows(folder)
    assert list(found) == ARMS
    for arm, row in found.items():
        assert (row["dropped"], row["repeated"], row["skipped"]) == (0, 0, None)
        assert row["steps"] == 32 or (arm in FITTED and abs(row["steps"] - 32) <= 4)
        assert row["planning_us"] > 0
    yardsticks = [found[arm]["yardstick"] for arm in ("padded to the longest", *SAME)]
    assert yardsticks == sorted(yardsticks, reverse=True)
    assert min(row["yardstick"] for row in found.values()) >= 1
    assert found["token_budget"]["yardstick"] > found["pool"]["yardstick"] > found["pool, packed"]["yardstick"]
    assert found["static, length_grouped"]["order_bias"] > 0.8
    assert found["balanced"]["gap"] == pytest.approx(0, abs=1e-9)
    assert found["packed"]["padding_efficiency"] == 1
    same = {round(found[arm]["order_bias"], 9) for arm in SAME if arm != "minmax"}
    assert len(same) == 1, "these train the same global batches"


def test_more_arms_with_a_lookahead_and_fewer_without_micro_batches(folder: Path) -> None:
    ahead = [*ARMS[:6], "balanced, W = 3", "balanced, M = 4, W = 3", "packed, W = 3", *ARMS[6:]]
    assert list(rows(folder, "--lookahead", "3")) == ahead
    assert list(rows(folder, "--max-microbatches", "2")) == [arm.replace("4", "2") for arm in ARMS]
    assert list(rows(folder, "--max-microbatches", "1")) == [arm for arm in ARMS if "M = " not in arm]


def test_named_policies(folder: Path) -> None:
    words = ["--policy", "balanced", "--policy", "static", "--max-microbatches", "3"]
    assert list(rows(folder, *words)) == ["balanced, M = 3", "static"]


def test_the_table_says_what_the_json_says(folder: Path) -> None:
    words = ["--policy", "static", "--policy", "balanced", "--policy", "packed"]
    lines = call(folder, *words).stdout.splitlines()
    assert "1,003 samples" in lines[0]
    for arm, row in rows(folder, *words).items():
        (line,) = [line for line in lines if line.split()[:1] == [arm]]
        cells = line.split()
        assert cells[1] == f"{row['yardstick']:.4f}"
        assert cells[2] == f"{row['padding_efficiency']:.1%}"
        assert cells[3] == f"{row['imbalance']:.3f}"
    shared = " ".join(lines).split("all arms:")[1]
    assert "dropped 0, repeated 0, steps 32" in " ".join(shared.split())


def test_the_same_words_give_the_same_figures_and_another_seed_others(folder: Path) -> None:
    once, again, other = (rows(folder, "--seed", seed) for seed in ("1", "1", "2"))
    for arm in ARMS:
        assert [once[arm][name] for name in COUNTS] == [again[arm][name] for name in COUNTS]
        if arm not in ("padded to the longest", "pool, packed"):  # in which every micro-batch is as large in any order
            assert once[arm]["yardstick"] != other[arm]["yardstick"]


def test_alpha_and_gamma_are_planned_for_and_charged(folder: Path) -> None:
    """A dear micro-batch makes them few; without padding the square is of each sample's own length."""
    words = ["--policy", "balanced", "--max-microbatches", "4"]
    few, many = (rows(folder, *words, "--alpha", alpha)["balanced, M = 4"] for alpha in ("500", "1"))
    assert few["microbatches"] < many["microbatches"]
    assert few["yardstick"] > many["yardstick"]
    plain, squared = (rows(folder, "--policy", "static", "--gamma", gamma)["static"] for gamma in ("0", "0.1"))
    assert squared["yardstick"] > plain["yardstick"], "padding costs more than its tokens"


def test_peers_stand_beside_them(folder: Path) -> None:
    found = rows(folder, "--policy", "static", "--peer", "fairseq", "--peer", "deepspeed")
    assert list(found) == ["static", "fairseq", "deepspeed"]
    assert found["fairseq"]["yardstick"] < found["static"]["yardstick"]
    assert found["fairseq"]["order_bias"] > 0.1
    assert found["deepspeed"]["skipped"] is None or "pip install" in found["deepspeed"]["skipped"]
    if found["deepspeed"]["skipped"]:
        text = call(folder, "--policy", "static", "--peer", "deepspeed").stdout
        assert "deepspeed: skipped: deepspeed is not installed; pip install" in " ".join(text.split())


def test_in_a_calibrations_time(folder: Path) -> None:
    words = ["--calibration", str(folder / "calibration.json")]
    found = rows(folder, *words)
    assert list(found) == ARMS
    for row in found.values():
        assert row["step_seconds"] > 1e-3
    assert found["packed"]["step_seconds"] < found["balanced"]["step_seconds"] < found["static"]["step_seconds"]


def test_within_a_memory(folder: Path) -> None:
    """Room for 300 padded tokens beside the model: too little for static, whose arm is skipped with its reason."""
    words = ["--calibration", str(folder / "calibration.json"), "--memory", "1300000"]
    found = rows(folder, *words)
    assert "static gives each rank 8 of 32 samples" in found["static"]["skipped"]
    assert "static: skipped" in call(folder, *words).stdout
    path = folder / "capped.parquet"
    assert call(folder, *words, "--policy", "balanced", "--max-microbatches", "4", "--export", str(path)).exit_code == 0
    each = pd.read_parquet(path).groupby(["step", "rank", "microbatch"])
    assert each.pad_to.sum().max() <= 300
    refused = call(folder, *words, "--policy", "static")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "memory" in refused.stderr


def test_no_arm_fits_the_memory(folder: Path, tmp_path: Path) -> None:
    """Then there is nothing to draw, and that is said."""
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
    first, second = (own.id.tolist() for _, own in table.groupby("epoch"))
    assert first != second, "every epoch is shuffled anew"
    assert sorted(path.parent.iterdir()) == [path]


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
    assert "No space left on device" in result.stderr
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


OUT = "{out}"
BAD: dict[str, tuple[list[str], str]] = {
    "one rank more than samples": (["--world-size", "33"], "global_batch = 32 is smaller than world_size = 33"),
    "no ranks": (["--world-size", "0"], "world"),
    "no samples": (["--global-batch", "0"], "global"),
    "an unknown policy": (["--policy", "balancd", "--figure", f"{OUT}/a.png"], "'balancd'"),
    "an unknown peer": (["--policy", "static", "--peer", "nobody", "--figure", f"{OUT}/a.png"], "'nobody' is none of"),
    "no micro-batch": (["--max-microbatches", "0"], "microbatches"),
    "no lookahead": (["--lookahead", "0"], "lookahead"),
    "no epoch": (["--epochs", "0"], "epochs"),
    "a seed below zero": (["--seed", "-1"], "seed"),
    "windows too small": (["--policy", "minmax", "--prefetch", "7"], "raise policy.prefetch to at least 8"),
    "no window": (["--policy", "minmax", "--prefetch", "0"], "prefetch"),
    "alpha below zero": (["--alpha", "-1"], "alpha"),
    "memory of what": (["--memory", "1000"], "--memory needs --calibration"),
    "a calibration that is not there": (["--calibration", "no.json"], "calibration no.json: "),
    "two costs": (["--alpha", "3", "--calibration", "no.json"], "--alpha and --gamma are padded tokens"),
    "export of all": (["--export", f"{OUT}/a.parquet"], "--export writes the plans of one policy"),
    "export of two": (
        ["--policy", "static", "--policy", "packed", "--export", f"{OUT}/a.parquet"],
        "--export writes the plans of one policy",
    ),
    "export to nowhere": (["--policy", "static", "--export", f"{OUT}/no/a.parquet"], "make it first"),
    "export to a folder": (["--policy", "static", "--export", OUT], ""),
    "export to no name": (["--policy", "static", "--export", "."], ""),
    "a figure in nowhere": (["--figure", f"{OUT}/no/a.png"], "make it first"),
    "a figure of no kind": (["--figure", f"{OUT}/a.jpg"], "ends in .png, .svg or .pdf"),
    "a number that is none": (["--seed", "x"], "seed"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_words_give_one_message_and_no_file(folder: Path, tmp_path: Path, case: str) -> None:
    words, named = BAD[case]
    (tmp_path / "out").mkdir()
    result = call(folder, *(word.replace(OUT, str(tmp_path / "out")) for word in words))
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in (1, 2)
    text = " ".join(result.stderr.replace("│", " ").split())
    assert named in text
    assert text.lower().count("error") == 1 or result.exit_code == 2
    assert "Traceback" not in result.output
    assert [path.name for path in tmp_path.rglob("*")] == ["out"]


def test_a_name_is_shown_as_it_is(tmp_path: Path) -> None:
    np.save(tmp_path / "[red]lengths.npy", [3, 4])
    result = CliRunner().invoke(app, ["plan", str(tmp_path / "[red]lengths.npy"), *SIZES])
    assert "[red]lengths.npy: 2 samples" in " ".join(result.stdout.split())


@pytest.mark.parametrize("name", ["no.npy", "zero.txt", "bytes.txt", "a.npy"])
def test_bad_lengths_give_one_message(tmp_path: Path, name: str) -> None:
    (tmp_path / "zero.txt").write_text("3\n0\n")
    (tmp_path / "bytes.txt").write_bytes(b"3\n\xff\n")
    (tmp_path / "a.npy").mkdir()
    result = CliRunner().invoke(app, ["plan", str(tmp_path / name), *SIZES])
    assert isinstance(result.exception, SystemExit), result.exception
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: ")
    assert name in result.stderr


@pytest.mark.parametrize("size", [1, 5, 32, 33])
def test_small_data(tmp_path: Path, size: int) -> None:
    np.save(tmp_path / "lengths.npy", np.arange(1, size + 1))
    for arm, row in rows(tmp_path, "--lookahead", "2").items():
        assert (row["dropped"], row["repeated"]) == (0, 0), row["skipped"]
        assert row["steps"] == -(-size // 32) or arm in FITTED
    assert call(tmp_path).exit_code == 0


def test_no_torch(folder: Path, tmp_path: Path) -> None:
    words = ["plan", str(folder / "lengths.npy"), *SIZES, "--lookahead", "2", "--figure", str(tmp_path / "a.png")]
    code = f"""
import sys
from ddpsched.cli import app
try:
    app({words!r})
except SystemExit as end:
    assert not end.code, end.code
sys.exit("torch" in sys.modules or "transformers" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "packed, W = 2" in done.stdout


# (data set, G, B): yardsticks of static and of balanced with one micro-batch; the most that balanced with up to four
# and packed may have
REAL = {
    ("sst2", 4, 32): (3.010, 1.374, 1.043, 1.004),
    ("sst2", 8, 256): (3.909, 1.204, 1.021, 1.0015),
    ("sst2", 64, 2048): (4.483, 1.045, 1.008, 1.0015),
    ("gsm8k", 4, 32): (1.946, 1.220, 1.030, 1.0015),
    ("gsm8k", 8, 256): (2.390, 1.124, 1.025, 1.0005),
}


@pytest.fixture(scope="module")
def real(data_dir: Path) -> dict[str, Any]:
    """Token lengths by data set, special tokens counted."""
    texts = {"sst2": ("train.tsv", ("sentence",)), "gsm8k": ("train.jsonl", ("question", "answer"))}
    missing = [name for name, (file, _) in texts.items() if not (data_dir / name / file).exists()]
    if missing:
        pytest.skip(f"no {', '.join(missing)} in {data_dir}")
    return {
        name: read_lengths(data_dir / name / file, texts=columns, tokenizer=str(data_dir / "bert-uncased"))
        for name, (file, columns) in texts.items()
    }


@pytest.mark.parametrize("case", REAL, ids=lambda case: "-".join(map(str, case)))
def test_real_lengths(real: dict[str, Any], case: tuple[str, int, int]) -> None:
    name, ranks, batch = case
    static, balanced, several, packed = REAL[case]
    question = Question(real[name], world_size=ranks, global_batch=batch, max_microbatches=4)
    figures = {row.arm: row.figures for row in compare(question)}
    found = {arm: own.yardstick for arm, own in figures.items() if own is not None}
    assert found["static"] == pytest.approx(static, rel=0.02)
    assert found["balanced"] == pytest.approx(balanced, rel=0.007)
    assert 1 <= found["packed"] <= packed
    assert found["packed"] <= found["balanced, M = 4"] <= several
    for own in figures.values():
        assert own is not None
        assert (own.dropped, own.repeated) == (0, 0)
    for arm in SAME:
        assert figures[arm].steps == -(-len(real[name]) // batch)
    for arm in FITTED:
        # bins of one size for all ranks cannot be had in steps of any size
        assert figures[arm].steps == pytest.approx(len(real[name]) / batch, rel=0.25 if arm == "bins" else 0.05)
    for arm in ("balanced", "balanced, M = 4", "packed"):
        assert abs(figures[arm].order_bias - figures["static"].order_bias) < 0.005
