"""``ddpsched runs rm``: a run that has ended, all of it, and nothing else."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from made_runs import finished, going_on, never_begun
from typer.testing import CliRunner

from ddpsched.cli import app
from ddpsched.monitor import removing
from ddpsched.run_lock import RunLock


def remove(*words: object) -> Any:
    return CliRunner().invoke(app, ["runs", "rm", *map(str, words)])


def test_runs_are_removed_whole(tmp_path: Path) -> None:
    runs = [finished(tmp_path / "study" / name) for name in ("a", "b")]
    kept = finished(tmp_path / "study" / "kept")
    (runs[0] / "model").mkdir()
    runs.append(never_begun(tmp_path / "study" / "c"))
    result = remove(*runs, runs[0], "--yes", "--json")
    assert result.exit_code == 0
    assert json.loads(result.output) == {"removed": [str(run) for run in runs]}
    assert [path.name for path in (tmp_path / "study").iterdir()] == ["kept"]
    assert (kept / "records-rank0.jsonl").exists()


def test_a_damaged_status_is_no_obstacle(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run")
    (folder / "status.json").write_text("{")
    assert remove(folder, "--yes").exit_code == 0
    assert not folder.exists()


def test_one_that_runs_is_refused_and_so_all_that_are_named(tmp_path: Path) -> None:
    other = finished(tmp_path / "other")
    with going_on(tmp_path / "run") as (folder, _):
        result = remove(other, folder.path, "--yes")
    assert result.exit_code == 1
    assert "is held by a run" in result.output
    assert result.output.endswith("; wait for it, or end it\n")
    assert other.exists()


def user_file(folder: Path) -> None:
    (folder / "notes.txt").write_text("mine")


def link(folder: Path) -> None:
    (folder / "logs" / "elsewhere").symlink_to(folder.parent)


def no_status(folder: Path) -> None:
    (folder / "status.json").unlink()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (user_file, "holds notes.txt, which no run writes; move that away first"),
        (link, "nothing is written or deleted through it; remove the link\n"),
        (no_status, "is no run: it has no status.json; only folders of runs are removed"),
    ],
)
def test_what_is_not_ours_is_refused(tmp_path: Path, change: Any, says: str) -> None:
    folder = finished(tmp_path / "run")
    change(folder)
    result = remove(folder, "--yes")
    assert result.exit_code == 1
    assert says in result.output
    assert (folder / "records-rank0.jsonl").exists()


def test_a_link_to_a_run_and_a_study_of_links(tmp_path: Path) -> None:
    folder = finished(tmp_path / "study" / "run")
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "linked").symlink_to(tmp_path / "study")
    for named in (tmp_path / "link", tmp_path / "linked" / "run"):
        result = remove(named, "--yes")
        assert result.exit_code == 1
        assert "is a link to" in result.output
        assert result.output.endswith("; remove the link, or name the folder that the run itself is in\n")
    assert folder.exists()
    assert "there is no such folder" in remove(tmp_path / "none", "--yes").output


def test_it_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = finished(tmp_path / "study" / "run")
    other = finished(tmp_path / "study" / "other")
    assert "error: 1 run is to be removed, and there is no terminal to ask; give --yes" in remove(folder).output
    assert "error: 2 runs are to be removed" in remove(folder, other).output
    monkeypatch.setattr(removing, "_has_terminal", lambda: True)
    result = CliRunner().invoke(app, ["runs", "rm", str(folder)], input="n\n")
    assert result.exit_code == 1
    assert "done, 20 steps" in result.output
    assert "remove 1 run, with all its records and models?" in result.output
    assert "Traceback" not in result.output
    assert folder.exists()
    assert CliRunner().invoke(app, ["runs", "rm", str(folder)], input="y\n").exit_code == 0
    assert not folder.exists()


def test_a_full_disk_is_made_room_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = finished(tmp_path / "run")
    monkeypatch.setattr(os, "pwrite", full)
    assert remove(folder, "--yes").exit_code == 0
    assert not os.listdir(tmp_path)


def test_no_run_begins_there_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is locked from the last check on until it has another name."""
    folder, seen = finished(tmp_path / "run"), []
    take = RunLock.take

    def look(lock: RunLock) -> None:
        take(lock)
        seen.append((folder / "lock").exists())

    monkeypatch.setattr(RunLock, "take", look)
    assert remove(folder, "--yes").exit_code == 0
    assert seen == [True]
    assert not os.listdir(tmp_path)
