"""The command line as a shell has it: versions, and pipes whose reader ends."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import ddpsched
from ddpsched.cli import app

ROOT = Path(__file__).parents[1]


def test_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"ddpsched {ddpsched.__version__}\n")
    assert "Decide, step by step" in CliRunner().invoke(app, ["--help"]).stdout


@pytest.mark.parametrize("words", [["experiments.train", "--help"], ["ddpsched", "train", "-h"]])
def test_the_help_of_a_rank_is_no_error(words: list[str]) -> None:
    found = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    assert "Usage:" in found.stdout
    assert "-m experiments.train CONFIG [key=value ...]" in found.stdout


@pytest.mark.parametrize("lines", [1, 0])
def test_a_reader_that_ends_early_is_no_error(tmp_path: Path, lines: int) -> None:
    """As `ddpsched plan ... | head -1` does; the table is longer than what a pipe's reader takes."""
    (tmp_path / "lengths.txt").write_text("3\n" * 50)
    words = ["plan", str(tmp_path / "lengths.txt"), "--world-size", "2", "--global-batch", "4", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "ddpsched", *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    if lines:
        process.stdout.read(1)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() in (0, 141) if lines else process.wait() == 141
