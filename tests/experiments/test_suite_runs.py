"""Runs of the suite are counted over calls, and one that fails is not repeated."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from experiments.reliability import suite


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run without workers, which take seconds to start."""
    monkeypatch.setattr(suite, "COMMAND", ("-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider"))


def run(tmp_path: Path, count: int) -> Any:
    words = [str(tmp_path / "test_one.py"), "--count", str(count), "--tally", str(tmp_path / "tally.jsonl")]
    return CliRunner().invoke(suite.app, words)


def test_a_later_call_goes_on(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text("def test_a(): pass\ndef test_b(): pass\n")
    ended = run(tmp_path, 1)
    assert ended.exit_code == 0, ended.output
    with (tmp_path / "tally.jsonl").open("a") as file:
        file.write('{"cut')  # by a kill
    ended = run(tmp_path, 2)
    assert ended.exit_code == 0, ended.output
    assert "2 of 2: 2 passed, 0 failed" in ended.output
    assert "1 of 2:" not in ended.output
    assert "2 of 2 green, 2 tests passed in the least run" in ended.output


def test_a_failure_is_counted_and_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text("def test_a(): pass\ndef test_b(): assert False\n")
    assert run(tmp_path, 1).exit_code == 1
    (tmp_path / "test_one.py").write_text("def test_a(): pass\n")
    ended = run(tmp_path, 2)
    assert ended.exit_code == 1
    assert "1 of 2 green" in ended.output
    assert "test_one.py::test_b" in ended.output


def test_runs_of_other_code_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_one.py").write_text("def test_a(): pass\n")
    assert run(tmp_path, 1).exit_code == 0
    monkeypatch.setattr(suite, "code", lambda: "other")
    assert "1 of 1: 1 passed" in run(tmp_path, 1).output


def test_the_code_is_the_files_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tests").mkdir()
    file = tmp_path / "tests" / "test_one.py"
    file.write_text("def test_a(): pass\n")
    monkeypatch.setattr(suite, "ROOT", tmp_path)
    before = suite.code()
    (tmp_path / "README.md").write_text("no code")
    assert suite.code() == before
    file.write_text("def test_a(): assert True\n")
    assert suite.code() != before
