"""`ddpsched plan` given wrong words, odd names and real lengths."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plan_commands import FITTED, SAME, SIZES, call, fill, rows
from typer.testing import CliRunner

from ddpsched.cli import app
from ddpsched.compare import Question, compare
from ddpsched.compare.show import text
from ddpsched.data.length_files import read_lengths


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("plan"))


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
    "export of no kind": (["--policy", "static", "--export", f"{OUT}/a.txt"], "ends in .parquet or .csv"),
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
    if missing:  # real data is not part of the project
        pytest.skip(f"no {', '.join(missing)} in {data_dir}; point DDPSCHED_DATA at a folder that has them")
    return {
        name: read_lengths(data_dir / name / file, texts=columns, tokenizer=str(data_dir / "bert-uncased"))
        for name, (file, columns) in texts.items()
    }


@pytest.mark.parametrize(
    "case",
    # by default the table in report/notes/planning.md checks the first
    [pytest.param(case, marks=pytest.mark.slow if case == ("sst2", 4, 32) else ()) for case in REAL],
    ids=lambda case: "-".join(map(str, case)),
)
def test_real_lengths(real: dict[str, Any], case: tuple[str, int, int]) -> None:
    name, ranks, batch = case
    static, balanced, several, packed = REAL[case]
    question = Question(real[name], world_size=ranks, global_batch=batch, max_microbatches=4)
    figures = {row.arm: row.figures for row in compare(question)}
    yardsticks = {arm: each.yardstick for arm, each in figures.items() if each is not None}
    assert yardsticks["static"] == pytest.approx(static, rel=0.02)
    assert yardsticks["balanced"] == pytest.approx(balanced, rel=0.007)
    assert 1 <= yardsticks["packed"] <= packed
    assert yardsticks["packed"] <= yardsticks["balanced, M = 4"] <= several
    for each in figures.values():
        assert each is not None
        assert (each.dropped, each.repeated) == (0, 0)
    for arm in SAME:
        assert figures[arm].steps == -(-len(real[name]) // batch)
    for arm in FITTED:
        # bins of one size for all ranks cannot be had in steps of any size
        assert figures[arm].steps == pytest.approx(len(real[name]) / batch, rel=0.25 if arm == "bins" else 0.05)
    for arm in ("balanced", "balanced, M = 4", "packed"):
        assert abs(figures[arm].order_bias - figures["static"].order_bias) < 0.005


def test_a_terminal_of_60_columns_has_a_line_for_each_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    found = list(compare(Question(np.array([3, 5, 7, 40] * 4), 2, 4), ["static", "balanced"]))
    assert max(map(len, text(found, "lengths", "").splitlines())) > 60
    for name, value in {"TTY_COMPATIBLE": "1", "NO_COLOR": "1", "COLUMNS": "60", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)
    narrow = [line.rstrip() for line in text(found, "lengths", "").splitlines()]
    assert max(map(len, narrow)) <= 60
    assert [line.split() for line in narrow if line.startswith(" arm ")] == [["arm", "static"], ["arm", "balanced"]]
