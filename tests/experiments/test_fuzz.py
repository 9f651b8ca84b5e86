"""Damaged configs and files of runs are refused in one message; and the fuzzer notices where they are not."""

import subprocess
import sys
import tomllib
from pathlib import Path
from random import Random
from typing import Any

import pytest
from typer.testing import CliRunner

from ddpsched import record_lines, records
from ddpsched.config import read
from ddpsched.errors import DataError
from experiments.reliability.fuzz import checkpoints, configs
from experiments.reliability.fuzz import records as runs
from experiments.reliability.fuzz.__main__ import app
from experiments.reliability.fuzz.mutate import bytes_changed, changed, leaves, removed
from experiments.reliability.fuzz.outcome import Tally, taken

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("seed", [0, 1])
def test_configs(seed: int) -> None:
    tally = configs.fuzz(100, seed)
    assert not tally.faults, list(tally.examples(5))
    assert tally.counts["refused"] > 50
    assert tally.counts["accepted"] > 3


def test_records() -> None:
    tally = runs.fuzz(40, 0)
    assert not tally.faults, list(tally.examples(5))
    assert tally.counts["refused"] > 15
    assert tally.counts["accepted"] > 3


def test_ordered_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "FILES", (runs.ORDER,))
    tally = runs.fuzz(150, 0)
    assert not tally.faults, list(tally.examples(5))
    assert tally.counts["refused"] > 60
    assert tally.counts["accepted"] > 3


def test_an_ordered_file_whose_sums_are_not_compared_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "FILES", (runs.ORDER,))
    monkeypatch.setattr("ddpsched.data.order_file._add_sums", lambda sums, rows, first: None)
    assert runs.fuzz(60, 0).counts["accepted wrongly"]


def test_checkpoints() -> None:
    tally = checkpoints.fuzz(60, 3)
    assert not tally.faults, list(tally.examples(5))
    assert tally.counts["refused"] > 30


def test_a_manifest_that_is_not_compared_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpsched.recovery.checkpoints._facts", lambda file: {})
    assert checkpoints.fuzz(60, 3).faults


@pytest.mark.slow
@pytest.mark.parametrize(("fuzz", "count"), [(configs.fuzz, 5000), (runs.fuzz, 5000), (checkpoints.fuzz, 1000)])
def test_many(fuzz: Any, count: int) -> None:
    tally = fuzz(count, 7)
    assert not tally.faults, list(tally.examples(20))


def test_a_decoder_that_raises_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "decode_toml", tomllib.loads)
    tally = configs.fuzz(100, 0)
    assert tally.counts["traceback"]
    assert "RecursionError" in "".join(tally.examples(100))


def test_a_reader_that_checks_no_sums_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def unchecked(path: Path) -> Any:
        for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
            yield number, line[: -record_lines.WIDTH] + b"}"

    monkeypatch.setattr(records, "read_sealed", unchecked)
    monkeypatch.setattr(runs, "FILES", (runs.LINES,))
    assert runs.fuzz(60, 0).counts["accepted wrongly"]


def test_how_a_reader_takes_a_file() -> None:
    def refuse(message: str) -> None:
        raise DataError(message)

    def names(message: str) -> bool:
        return "file" in message

    assert taken(lambda: refuse("file: wrong"), names, True)[0] == "refused"
    assert taken(lambda: refuse("wrong"), names, True)[0] == "no place"
    assert taken(lambda: refuse("file" * 2000), names, True)[0] == "too long"
    assert taken(lambda: None, names, True)[0] == "accepted wrongly"
    assert taken(lambda: None, names, False)[0] == "accepted"
    outcome, said = taken(lambda: [][0], names, True)
    assert (outcome, said.startswith("IndexError")) == ("traceback", True)
    tally = Tally()
    tally.add("traceback", "a")
    tally.add("refused", "b")
    assert (tally.faults, list(tally.examples(5))) == (1, ["traceback: a"])
    assert str(tally).startswith("1 refused, 0 accepted, 1 traceback, 0 accepted wrongly")


def test_a_reader_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    from experiments.reliability.fuzz import outcome

    monkeypatch.setattr(outcome, "LIMIT_S", 1)
    assert taken(lambda: time.sleep(30), lambda message: True, True)[0] == "hangs"


def test_damage() -> None:
    values = {"a": 1, "b": [{"c": 2}]}
    assert list(leaves(values)) == [("a",), ("b",), ("b", 0), ("b", 0, "c")]
    assert changed(values, ("b", 0, "c"), 5) == {"a": 1, "b": [{"c": 5}]}
    assert removed(values, ("b", 0)) == {"a": 1, "b": []}
    assert values == {"a": 1, "b": [{"c": 2}]}
    assert bytes_changed(Random(3), b"abc") == bytes_changed(Random(3), b"abc")


def test_the_command() -> None:
    command = [sys.executable, "-m", "experiments.reliability.fuzz", "configs", "--count", "20"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("Damaged configs: 20: ")
    wrong = CliRunner().invoke(app, ["notes"])
    assert (wrong.exit_code, wrong.output) == (1, "error: 'notes': give one of configs, records, checkpoints\n")
