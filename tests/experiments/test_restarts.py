"""Runs that torchrun starts again go on, with as many ranks or with others."""

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.reliability import restarts
from experiments.reliability.restarts import Case

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_rank_is_killed_and_all_start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random.Random, "randint", lambda self, low, high: low)  # two ranks, one kill
    assert restarts.one_run(1, "restart") == ([], [2, 2])


@pytest.mark.slow
def test_each_form() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "experiments.reliability.restarts", "--count", "4"],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=900,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout
    assert re.search(r"4 of 4, [12] of them with another number of ranks", ended.stdout)


def test_a_launcher_that_fails_is_noticed(tmp_path: Path) -> None:
    case = Case(tmp_path, "restart", 0)
    case.launchers.append(subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]))
    assert case.faults([2]) == ["launcher 0 ended with exit code 3", "absent: None"]


@pytest.mark.slow
def test_an_incomplete_run_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config.toml"
    lines = f'outputs = "{tmp_path}"\nsteps = 4\nglobal_batch = 12\nworld_size = 2\n'
    config.write_text(lines + 'executor.kind = "virtual"\ndata.size = 100\n')
    subprocess.run([sys.executable, "-m", "ddpsched", "run", str(config)], check=True, cwd=ROOT)
    monkeypatch.setitem(restarts.STEPS, "restart", 4)
    case = Case(tmp_path, "restart", 0)
    assert case.faults([2]) == []
    records = case.run / "records-rank0.jsonl"  # of both ranks: they run in one process
    records.write_bytes(b"".join(records.read_bytes().splitlines(keepends=True)[:-1]))
    monkeypatch.setitem(restarts.STEPS, "restart", 5)
    assert case.faults([2, 2]) == [
        "began with [2] ranks, expected [2, 2]",
        "4 steps, expected 5",
        "1 records are missing, first that of step 3, rank 1",
    ]
