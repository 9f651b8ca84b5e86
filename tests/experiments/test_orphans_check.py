"""The check of left processes, in short, and that it notices one."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from experiments.reliability import orphans

LEAVES_ONE = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", sys.argv[1]])
time.sleep(60)
"""


@pytest.mark.slow
def test_nothing_is_left_of_a_run_whose_driver_is_killed() -> None:
    ended = CliRunner().invoke(orphans.app, ["--count", "2", "--seed", "3"])
    assert ended.exit_code == 0, ended.output
    assert "0 after 2 kills" in ended.output


def leaves_one(folder: Path) -> "subprocess.Popen[Any]":
    return subprocess.Popen([sys.executable, "-c", LEAVES_ONE, f"{folder}/x"])


def test_a_process_that_is_left_is_noticed_and_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(orphans, "DRIVERS", {"a driver": leaves_one, "another": leaves_one})
    monkeypatch.setattr(orphans, "LEFT_S", 0.2)
    ended = CliRunner().invoke(orphans.app, ["--count", "1", "--seed", "1"])
    assert ended.exit_code == 1
    assert "a driver, start: 1 left" in ended.output
    assert "1 after 1 kills" in ended.output
