"""The check of the marker, at one point, and that it notices a run that is called done too early."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.reliability import marked

POINT = "before records.parquet's rename"


@pytest.mark.slow
def test_one_point() -> None:
    ended = CliRunner().invoke(marked.app, ["--point", POINT])
    assert ended.exit_code == 0, ended.output
    assert f"{POINT}: failed, 1 things missing" in ended.output


def test_done_too_early_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(marked, "killed_at", lambda *_: ("done", ["records.parquet: is not there"]))
    ended = CliRunner().invoke(marked.app, ["--point", "after status.json"])
    assert ended.exit_code == 1
    assert "FAULT after status.json: done, but records.parquet: is not there" in ended.output


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "environment.json").write_text(json.dumps({"starts": []}))
    (tmp_path / "evaluations.jsonl").write_text("{}\n")
    (tmp_path / "records.parquet").write_bytes(b"PAR1")
    found = marked.missing(tmp_path)
    assert any(each.startswith("records.parquet: ") for each in found)
    assert any(each.startswith("model/") for each in found)
    assert not any(each.startswith(("environment", "evaluations")) for each in found)
