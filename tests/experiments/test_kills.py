"""Real runs under torchrun that are killed and started again end as if they had not been."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def kills(*words: str) -> str:
    """Return what the command prints. Fails where its exit code is not 0."""
    ended = subprocess.run(
        [sys.executable, "-m", "experiments.reliability.kills", *words],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=900,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


@pytest.mark.slow
def test_two_kills() -> None:
    """The first falls into the writing of a checkpoint; ten more are `make checks`."""
    printed = kills("--count", "2", "--seed", "1")
    assert re.search(r"2 kills in \d runs, 0 faults", printed)
    assert "while a checkpoint was written" in printed


@pytest.mark.slow
def test_kills_with_another_number_of_ranks_at_each_start() -> None:
    assert ", 0 faults" in kills("--count", "6", "--resize")
