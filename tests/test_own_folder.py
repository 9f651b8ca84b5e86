"""Nothing is written or deleted through a link: not by a run, not by what removes its files, not by the analysis."""

import os
import re
from functools import partial
from pathlib import Path

import pytest
from synthetic import write_run

from analysis.draw import figures_folder
from analysis.load import load_run, load_study
from analysis.waits import load_timeline
from ddpsched.config import parse
from ddpsched.errors import ConfigError, DataError
from ddpsched.own_folder import check_own, remove
from ddpsched.recovery.audit import audit
from ddpsched.recovery.checkpoints import Checkpoints, verified
from ddpsched.run_folder import RunFolder, read_status
from ddpsched.run_lock import RunLock, holder
from ddpsched.sort.parts import Parts

PLACES = (
    ".", "checkpoints", "model", "logs", "figures", "lock", "status.json", "config.toml", "records-rank0.jsonl",
    "ledger.jsonl", "logs/rank0.log", "checkpoints/step-00000004",
)  # fmt: skip


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """Return a folder outside of all outputs, with a file in it."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "kept").write_text("mine")
    return folder


def linked(run: Path, place: str, target: Path) -> Path:
    """Make a link in a run's folder, or of it."""
    path = run / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target if place in (".",) or "." not in place.rpartition("/")[2] else target / "kept")
    return path


@pytest.mark.parametrize("place", PLACES)
def test_a_run_with_a_link_in_its_folder_is_refused(tmp_path: Path, elsewhere: Path, place: str) -> None:
    run = tmp_path / "outputs" / "study" / "run"
    if place == ".":
        run.parent.mkdir(parents=True)
        run.symlink_to(elsewhere)
    else:
        linked(run, place, elsewhere)
    with pytest.raises(DataError, match=r"is a link to .*elsewhere.*: nothing is written or deleted through it; rem"):
        RunFolder(run, "", overwrite=True)
    assert [path.name for path in elsewhere.iterdir()] == ["kept"]


READ = (
    "status.json", "lock", "config.toml", "environment.json", "ledger.jsonl", "records-rank0.jsonl", "records.parquet",
    "evaluations.jsonl", "timeline-rank0.jsonl", "logs/heartbeat-rank0.json", "checkpoints/step-00000004/manifest.json",
)  # fmt: skip


@pytest.mark.parametrize("place", READ)
def test_a_pipe_in_a_runs_folder_is_refused_by_whoever_reads_it(tmp_path: Path, place: str) -> None:
    pipe = tmp_path / place
    pipe.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(pipe)
    for read in (partial(RunFolder, config="", overwrite=True), audit, load_run, load_timeline):
        with pytest.raises(DataError, match=re.escape(f"{pipe} is a device or a pipe, where only a file is read; rem")):
            read(tmp_path)


def test_a_status_a_lock_and_a_manifest_that_lead_to_a_device_are_refused(tmp_path: Path) -> None:
    for name, read in {"status.json": read_status, "lock": holder, "manifest.json": verified}.items():
        (tmp_path / name).symlink_to("/dev/zero")
        with pytest.raises(DataError, match=rf"{name}.*a device or a pipe, where only a file is read"):
            read(tmp_path)


def test_a_study_that_is_a_link_is_refused_and_outputs_elsewhere_are_not(tmp_path: Path, elsewhere: Path) -> None:
    outputs = tmp_path / "outputs"
    outputs.symlink_to(elsewhere)  # as on a machine with a scratch disk
    RunFolder(outputs / "study" / "run", "", overwrite=True)
    (elsewhere / "target").mkdir()
    (outputs / "study").symlink_to(elsewhere / "target")
    with pytest.raises(DataError, match="is a link"):
        RunFolder(outputs / "study" / "run", "", overwrite=True)


def test_removing_a_link_leaves_what_it_leads_to(tmp_path: Path, elsewhere: Path) -> None:
    for target in (elsewhere, elsewhere / "kept", tmp_path / "absent"):
        link = tmp_path / "link"
        link.symlink_to(target)
        remove(link)
        assert not link.is_symlink()
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "inner").symlink_to(elsewhere)
    remove(folder)
    assert not folder.exists()
    assert (elsewhere / "kept").read_text() == "mine"


def test_checkpoints_are_removed_as_links(tmp_path: Path, elsewhere: Path) -> None:
    (elsewhere / "state.json").write_text("{}")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-00000008").symlink_to(elsewhere)
    Checkpoints(tmp_path, 1).forget_after(4)
    assert not (tmp_path / "checkpoints" / "step-00000008").is_symlink()
    assert (elsewhere / "state.json").exists()


def test_a_lock_is_not_written_through_a_link(tmp_path: Path, elsewhere: Path) -> None:
    (tmp_path / "lock").symlink_to(elsewhere / "kept")
    with pytest.raises(OSError, match="symbolic links"):
        RunLock(tmp_path).take()
    assert (elsewhere / "kept").read_text() == "mine"


def test_parts_of_a_sort_are_not_deleted_through_a_link(tmp_path: Path, elsewhere: Path) -> None:
    parts = Parts(tmp_path / "order.npy", {})
    parts.folder.symlink_to(elsewhere)
    (elsewhere / "000000000.npz").write_text("mine")
    with pytest.raises(DataError, match="is a link"):
        parts.begin()
    assert (elsewhere / "000000000.npz").exists()


def test_the_analysis_writes_no_figure_through_a_link(tmp_path: Path, elsewhere: Path) -> None:
    run = write_run(tmp_path / "study", "static", steps=2)
    (run / "figures").symlink_to(elsewhere)
    with pytest.raises(DataError, match="is a link"):
        figures_folder(run)
    (run / "figures").unlink()
    run.rename(tmp_path / "moved")
    run.symlink_to(tmp_path / "moved")
    write_run(tmp_path / "study", "minmax", steps=2)
    assert list(load_study(tmp_path / "study").left_out) == [run.name]


def test_a_study_name_in_a_run_on_the_disk_is_no_path(tmp_path: Path) -> None:
    run = write_run(tmp_path / "study", "static", steps=2)
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace('study = "study"', 'study = "../../elsewhere"'))
    with pytest.raises(DataError, match=r"study = '\.\./\.\./elsewhere'"):
        load_run(run)


@pytest.mark.parametrize(
    "name",
    ["..", ".", "", ".hidden", "a/b", "a\\b", "a\0b", "/etc", "a\n", "a b", "é", "~", "x" * 201, "-x", "a\u202e"],
)
@pytest.mark.parametrize("key", ["name", "study"])
def test_names_never_leave_their_folder(key: str, name: str) -> None:
    with pytest.raises(ConfigError, match=key):
        parse({"steps": 1, key: name})


def test_the_search_for_links_finds_none_in_a_plain_folder(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").write_text("")
    check_own(tmp_path / "a")
    check_own(tmp_path / "absent")
