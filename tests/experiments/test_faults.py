"""The fault matrix in short, and what it counts as wrong."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.reliability.faults import IN_TIME_S, Case, detection

ROOT = Path(__file__).parents[2]
SHORT = ["--rank", "2", "--phase", "backward", "--kind", "out of memory", "--kind", "segfault"]


def faults(*words: str) -> str:
    """Return what the command prints. Fails where its exit code is not 0."""
    command = [sys.executable, "-m", "experiments.reliability.faults", *words]
    ended = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=900)
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


@pytest.mark.slow
def test_one_that_recovers_and_one_that_ends() -> None:
    printed = faults(*SHORT)
    assert re.search("1 of 2: right: out of memory, backward, rank 2: done, exit code 0", printed)
    assert re.search(r"2 of 2: right: segfault, backward, rank 2: failed, exit code 1.*: rank 2 died", printed)


@pytest.mark.slow
def test_one_rank_in_one_phase_by_every_fault() -> None:
    assert ": 12 of 12 (asked" in faults("--rank", "0", "--phase", "forward")


def test_what_is_wrong() -> None:
    right = Case("NaN", "forward", 2, "failed", "rank 2: loss", blamed=2, code=1, seconds=3.0)
    assert right.is_right
    for change in (
        {"blamed": 1}, {"code": 0}, {"code": None}, {"seconds": None}, {"seconds": IN_TIME_S + 1}, {"left": 1},
        {"state": "done"},
    ):  # fmt: skip
        assert not replace(right, **change).is_right, change
    goes_on = Case("out of memory", "forward", 0, "done", code=0, seconds=5.0)
    assert goes_on.is_right
    assert not replace(goes_on, faults=1).is_right
    assert not replace(goes_on, phase="optimizer").is_right
    assert detection([right, replace(right, seconds=5.0)]) == {"NaN": {"median_s": 4.0, "max_s": 5.0}}
