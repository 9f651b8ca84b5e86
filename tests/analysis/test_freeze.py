"""A frozen study has the numbers of its runs, no path of this machine, and is written whole or not at all."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from synthetic import write_arm

from analysis import freeze as module
from analysis.freeze import RUNS, freeze, main, open_study, read_frozen
from analysis.load import Study, load_study
from analysis.settings import settings
from analysis.tables import study_tables
from ddpsched.errors import AGAIN, DataError
from ddpsched.records import RECORDS


@pytest.fixture
def study(tmp_path: Path) -> Study:
    for policy in ("static", "balanced"):
        write_arm(tmp_path / "outputs" / "small", policy, aa=policy == "static", slower=1.0 + (policy == "static"))
    return load_study(tmp_path / "outputs" / "small")


def test_the_tables_are_those_of_the_runs(study: Study, tmp_path: Path) -> None:
    size = freeze(study, tmp_path / "frozen" / "small")
    frozen = open_study(tmp_path / "frozen" / "small")
    assert [run.name for run in frozen.runs] == [run.name for run in study.runs]
    assert size == sum(path.stat().st_size for path in (tmp_path / "frozen" / "small").iterdir())
    for mine, other in zip(frozen.runs, study.runs, strict=True):
        pd.testing.assert_frame_equal(mine.records, other.records, atol=1e-7, rtol=0)
        pd.testing.assert_frame_equal(mine.evaluations, other.evaluations)
    one, two = (pd.DataFrame(study_tables(settings(each.runs))[0]["ratios"]) for each in (frozen, study))
    pd.testing.assert_frame_equal(one, two, rtol=1e-4)
    assert list(one["verdict"]) == list(two["verdict"])


def test_it_is_the_same_bytes_again_and_holds_no_path(study: Study, tmp_path: Path) -> None:
    for run in study.runs:
        run.config["data"]["path"] = "/home/somebody/sets/sst2/train.tsv"
    folder = tmp_path / "frozen"
    freeze(study, folder)
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    freeze(study, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == first
    assert b"somebody" not in first[RUNS]
    assert b"sst2/train.tsv" in first[RUNS]


def test_other_files_stay(study: Study, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(DataError, match="holds other files than a frozen study; give another folder"):
        freeze(study, tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


def test_a_full_disk_leaves_what_was_there(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    freeze(study, tmp_path / "frozen")
    before = (tmp_path / "frozen" / RUNS).read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_json", full)
    with pytest.raises(OSError, match="No space left"):
        freeze(study, tmp_path / "frozen")
    assert (tmp_path / "frozen" / RUNS).read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["frozen", "outputs"]


def test_what_was_there_comes_back_where_the_new_one_cannot_take_its_place(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, rename = tmp_path / "frozen", Path.rename
    freeze(study, folder)
    before = (folder / RUNS).read_bytes()

    def refuse(path: Path, target: Path) -> Path:
        if target == folder and not path.name.endswith("-before"):
            raise OSError(errno.EPERM, "Operation not permitted")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(OSError, match="not permitted"):
        freeze(study, folder)
    assert (folder / RUNS).read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["frozen", "outputs"]


def test_a_file_that_cannot_be_removed_costs_no_copy(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "frozen"
    freeze(study, folder)
    unlink = os.unlink

    def refuse(path: Any, **more: Any) -> None:
        if str(path).endswith(RUNS):
            raise OSError(errno.EPERM, "Operation not permitted")
        unlink(path, **more)

    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(DataError, match=r"frozen is frozen; .*-before, which it replaces, .* remove it by hand"):
        freeze(study, folder)
    assert len(read_frozen(folder).runs) == len(study.runs)


@pytest.mark.parametrize(
    ("file", "content"), [(RECORDS, b"PAR1"), (RUNS, b"{"), (RUNS, b"[]"), (RUNS, b'{"runs": []}')]
)
def test_a_damaged_one_is_refused(study: Study, tmp_path: Path, file: str, content: bytes) -> None:
    freeze(study, tmp_path / "frozen")
    (tmp_path / "frozen" / file).write_bytes(content)
    with pytest.raises(DataError, match="freeze the study again") as refused:
        read_frozen(tmp_path / "frozen")
    assert AGAIN not in str(refused.value), "a run's remedy is none of a frozen study's"


def test_runs_without_records_are_refused(study: Study, tmp_path: Path) -> None:
    freeze(study, tmp_path / "frozen")
    content = json.loads((tmp_path / "frozen" / RUNS).read_text())
    content["runs"][0]["name"] = "another"
    (tmp_path / "frozen" / RUNS).write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"KeyError.'another'.*freeze the study again"):
        read_frozen(tmp_path / "frozen")


def test_the_command(study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(study.path), str(tmp_path / "frozen")]) == 0
    assert "9 runs, 1,080 rows" in capsys.readouterr().out
    assert main([str(tmp_path / "nothing"), str(tmp_path / "frozen")]) == 1
    assert "there is no such folder" in capsys.readouterr().err
