"""A finding of a reliability check: its exit code, and what is frozen of it."""

from pathlib import Path

import pytest

from ddpsched.errors import DataError
from experiments.reliability.findings import Finding, frozen, report


def test_a_frozen_finding_is_read_as_it_was_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finding = Finding("kills", "Kills", "0 lost", "0 lost in 3", True, "python -m kills", {"seconds": 2})
    assert report(finding, freeze=False, folder=tmp_path) == 0
    assert frozen(tmp_path) == {}
    report(finding, freeze=True, folder=tmp_path)
    found = frozen(tmp_path)["kills"]
    assert (found.measured, found.holds, found.details) == ("0 lost in 3", True, {"seconds": 2})
    assert len(found.date) == len("2026-01-01")
    assert set(found.machine) == {"cpu", "cores", "python", "torch"}
    assert "Kills: 0 lost in 3 (asked: 0 lost)" in capsys.readouterr().out


def test_one_that_does_not_hold_fails(tmp_path: Path) -> None:
    assert report(Finding("a", "A", "0", "1", False, "c"), freeze=False, folder=tmp_path) == 1


def test_a_file_that_is_no_finding_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"name": "a"}')
    with pytest.raises(DataError, match=r"a\.json is no finding"):
        frozen(tmp_path)
