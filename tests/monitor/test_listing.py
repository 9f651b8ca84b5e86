"""``ddpsched runs ls`` and ``show``: by status.json, quickly, with whatever cannot be read named."""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from made_runs import damaged, finished, going_on, never_begun, write
from typer.testing import CliRunner

from ddpsched.cli import app
from ddpsched.launcher_log import launcher_log
from ddpsched.monitor import follower
from ddpsched.monitor.found import find_runs
from ddpsched.monitor.listing import table
from ddpsched.records import compact
from ddpsched.run_lock import RunLock


def ask(*words: str) -> Any:
    return CliRunner().invoke(app, ["runs", *words], env={"COLUMNS": "100"})


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    """Runs: one done, one that failed, one killed, one of an earlier version; a damaged one; folders that are none."""
    finished(tmp_path / "one" / "done")
    with going_on(tmp_path / "one" / "failed") as (folder, writers):
        write(writers, 0, 3)
        folder.failed("a reason")
    with going_on(tmp_path / "two" / "killed"):
        pass
    early = finished(tmp_path / "two" / "early")
    status = json.loads((early / "status.json").read_text())
    (early / "status.json").write_text(json.dumps({key: status[key] for key in ("state", "started", "wall_s")}))
    tables = '[policy]\nkind = "peer"\npeer = "karmarkar_karp"\n[executor]\nkind = "virtual"\n'
    (early / "config.toml").write_text(f"seed = 3\nworld_size = 2\n{tables}")
    finished(tmp_path / "two" / "damaged")
    (tmp_path / "two" / "damaged" / "status.json").write_text('{"state": "do')
    (tmp_path / "two" / "figures").mkdir()
    (tmp_path / "README.md").write_text("of the user")
    return tmp_path


def test_each_run_has_a_line(outputs: Path) -> None:
    result = ask("ls", str(outputs))
    assert result.exit_code == 0
    rows = {line.split()[0]: line.split() for line in result.output.splitlines() if line.startswith(("one/", "two/"))}
    assert rows["one/done"][1:5] == ["done", "20", "static", "2"]
    assert rows["one/failed"][1:3] == ["failed", "3/400"]
    assert rows["two/killed"][1:3] == ["failed", "-/400"]
    assert rows["two/early"][1:4] == ["done", "20", "karmarkar_karp"], "a peer has the name of its package"
    assert "left out: 1\n" in result.output
    assert re.search(r"two/damaged: .*cannot be read as the status of a run \(not JSON", result.output)


def test_json_has_the_same(outputs: Path) -> None:
    found = json.loads(ask("ls", str(outputs), "--json").output)
    assert [run["name"] for run in found["runs"]] == ["one/done", "one/failed", "two/killed", "two/early"]
    assert found["runs"][1]["reason"] == "a reason"
    assert [Path(path).name for path in found["left_out"]] == ["damaged"]


def test_a_study_or_a_run_can_be_named(outputs: Path) -> None:
    assert [run.name for run in find_runs(outputs / "one")[0]] == ["one/done", "one/failed"]
    assert [run.name for run in find_runs(outputs / "one" / "done")[0]] == ["one/done"]


def test_names_do_not_depend_on_the_path_that_is_given(outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = outputs / "one" / "done"
    (outputs / "one" / "linked").symlink_to(outputs / "two" / "early")
    for place, given, names in (
        (folder, ".", ["one/done"]),
        (folder, "..", ["one/done", "one/failed"]),
        (folder, "../failed", ["one/failed"]),
        (folder / "logs", "..", ["one/done"]),
        (outputs / "one", ".", ["one/done", "one/failed"]),
        (outputs / "one", "done", ["one/done"]),
        (outputs / "one", "linked", ["one/linked"]),
        (outputs, ".", ["one/done", "one/failed", "two/killed", "two/early"]),
    ):
        monkeypatch.chdir(place)
        assert [run.name for run in find_runs(Path(given))[0]] == names
    monkeypatch.chdir(folder)
    assert ask("show", ".").output.startswith("one/done: done, 20 steps")


def test_steps_of_a_finished_run_without_its_lines(outputs: Path) -> None:
    folder = outputs / "one" / "done"
    compact(folder)
    for path in folder.glob("records-rank*.jsonl"):
        path.unlink()
    assert re.search(r"one/done +done +20 ", ask("ls", str(outputs)).output)
    assert "one/done: done, 20 steps" in ask("show", str(folder)).output


def test_show_counts_steps_that_all_ranks_have_ended(tmp_path: Path) -> None:
    with going_on(tmp_path / "study" / "killed") as (folder, writers):
        write(writers, 0, 10)
    writers[1].path.write_bytes(writers[1].path.read_bytes()[:-20])
    output = ask("show", str(folder.path)).output
    assert "study/killed: failed, 9 steps" in output
    assert "last 9 steps" in output
    assert "records-rank1.jsonl, line 10: it ends in the middle" in output
    writers[1].path.unlink()
    assert "10 steps" in ask("show", str(folder.path)).output, "no step is whole"


def test_a_run_that_goes_on(tmp_path: Path) -> None:
    with going_on(tmp_path / "study" / "run") as (_, writers):
        write(writers, 0, 7)
        (found,) = find_runs(tmp_path)[0]
        assert (found.state, found.steps, found.total_steps, found.wall_s) == ("running", 7, 400, None)


def test_no_runs(tmp_path: Path) -> None:
    assert ask("ls", str(tmp_path)).output == f"no runs in {tmp_path}\n"
    assert json.loads(ask("ls", str(tmp_path), "--json").output) == {"runs": [], "left_out": {}}
    result = ask("ls", str(tmp_path / "outputs"))
    assert result.exit_code == 1
    assert "there is no such folder; give the one that runs were written to" in result.output


def test_a_run_that_never_began_is_listed_with_its_reason(outputs: Path) -> None:
    printed = (
        "error: of an earlier launch",
        "failed: one/lost: wrong: mend it",
        "failed: one/other: another run's",
    )
    lost = never_begun(outputs / "one" / "lost", "\n".join(printed))
    (outputs / "one" / "waiting").mkdir()  # its launch has not ended
    rows = [line.split() for line in ask("ls", str(outputs)).output.splitlines() if line.startswith("one/")]
    assert rows[-1][:4] == ["one/lost", "never", "began", "-"], "the others are in order of their start"
    assert "one/waiting" not in [row[0] for row in rows]
    found = json.loads(ask("ls", str(outputs / "one"), "--json").output)["runs"]
    assert [(run["name"], run["state"], run["began"]) for run in found][1:] == [
        ("one/failed", "failed", True), ("one/lost", "failed", False),
    ]  # fmt: skip
    assert found[-1]["reason"] == "it never began: wrong: mend it; see logs/launcher.log"
    shown = ask("show", str(lost)).output
    assert shown.startswith("one/lost: never began\nit never began: wrong: mend it")
    assert "None" not in shown


@pytest.mark.parametrize(
    ("machine", "printed", "says"),
    [
        (0, "error: first\nerror: second\n", "second"),
        (1, "error: of machine 1\n", "of machine 1"),
        (0, "Traceback (most recent call last):\nKeyError: 'x'\n", "its launcher names no error"),
        (0, "error: \x1b[31mred\n", r"\x1b[31mred"),
    ],
)
def test_the_reason_is_the_last_error_of_the_launchers(tmp_path: Path, machine: int, printed: str, says: str) -> None:
    launcher_log(never_begun(tmp_path / "run", "started\n"), machine).write_text(printed)
    (found,) = find_runs(tmp_path)[0]
    assert found.reason == f"it never began: {says}; see logs/launcher.log"


def test_a_run_that_is_launched_again_is_not_called_failed(tmp_path: Path) -> None:
    lock = RunLock(never_begun(tmp_path / "study" / "run"))
    lock.take()
    runs, left_out = find_runs(tmp_path)
    assert not runs
    assert "it has not begun yet" in left_out[tmp_path / "study" / "run"]
    assert left_out[tmp_path / "study" / "run"].endswith("; wait for it, or end it")
    lock.give_back()
    assert [run.state for run in find_runs(tmp_path)[0]] == ["failed"]


@pytest.mark.parametrize("width", [30, 60, 80])
def test_a_narrow_terminal(outputs: Path, width: int) -> None:
    lines = table(find_runs(outputs)[0], width)
    assert max(map(len, lines)) <= width
    assert all(state in " ".join(lines) for state in ("done", "failed"))


def test_a_thousand_runs_in_less_than_a_second(tmp_path: Path) -> None:
    """Measured as processor time, which a busy machine changes little: a whole process, from its start to its end."""
    one = finished(tmp_path / "first" / "run", steps=200)
    lost = never_begun(tmp_path / "first" / "lost")
    for study in range(10):
        for run in range(100):
            folder = tmp_path / "outputs" / f"study-{study}" / f"run-{run}"
            if run % 10 == 0:
                shutil.copytree(lost, folder)
                continue
            folder.mkdir(parents=True)
            for name in ("status.json", "config.toml"):
                shutil.copy(one / name, folder / name)
            os.link(one / "records-rank0.jsonl", folder / "records-rank0.jsonl")
    words = [sys.executable, "-m", "ddpsched", "runs", "ls", str(tmp_path / "outputs")]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert len(done.stdout.splitlines()) == 1001
    assert spent_s < 1, f"{spent_s:.2f} s"


def test_show(outputs: Path) -> None:
    output = ask("show", str(outputs / "one" / "done")).output
    assert "one/done: done, 20 steps" in output
    assert "policy static, distributed, 2 ranks, seed 0" in output
    assert "on a device; data: some data" in output
    assert re.search(r"^   1 +4.0 +30 +50 +50 +0.5000", output, re.M)
    assert "a reason" in ask("show", str(outputs / "one" / "failed")).output
    assert "no records: remove the run" in ask("show", str(outputs / "two" / "killed")).output


def test_show_is_the_same_of_lines_and_of_parquet(outputs: Path) -> None:
    folder = outputs / "one" / "done"
    of_lines = json.loads(ask("show", str(folder), "--json").output)
    compact(folder)
    of_parquet = json.loads(ask("show", str(folder), "--json").output)
    assert of_parquet == of_lines
    assert of_lines["summary"]["num_steps"] == 20
    assert of_lines["summary"]["ranks"][1]["compute_s"] == pytest.approx(0.05)


def test_show_reads_on_behind_lines_that_are_no_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "MOST_AT_ONCE", 1000)
    found = json.loads(ask("show", str(damaged(tmp_path / "run", lines=1000, steps=5)), "--json").output)
    assert found["summary"]["num_steps"] == 5
    assert found["notes"][0].startswith("1,000 lines left out")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("records.parquet", b"no parquet", "records.parquet: cannot be read"),
        ("evaluations.jsonl", b"{\n", "evaluations.jsonl: its last line is no JSON"),
        ("environment.json", b"[", "environment.json cannot be read: it is no JSON"),
        ("environment.json", b"[", "; delete this file to see the rest, or run it again"),
        ("status.json", b"", "cannot be read as the status of a run"),
        ("status.json", b"", "if there is one, or run it again with --overwrite, or remove it (ddpsched runs rm "),
    ],
)
def test_a_damaged_file_is_named(outputs: Path, name: str, content: bytes, says: str) -> None:
    (outputs / "one" / "done" / name).write_bytes(content)
    result = ask("show", str(outputs / "one" / "done"))
    assert result.exit_code == 1
    assert says in result.output


def test_show_names_what_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder, says in (
        (tmp_path, "is no run: it has no status.json"),
        (tmp_path / "none", "none: there is no such folder; give the folder of a run, outputs/STUDY/RUN"),
        (tmp_path / "file", "file: is no folder; give the folder of a run, outputs/STUDY/RUN"),
    ):
        result = ask("show", str(folder))
        assert result.exit_code == 1
        assert says in result.output


def test_a_comparison_with_a_run_that_is_not_done_says_what_to_do(outputs: Path) -> None:
    done, failed = (str(outputs / "one" / name) for name in ("done", "failed"))
    with going_on(outputs / "one" / "going") as (folder, _):
        result = ask("compare", done, str(folder.path))
    assert result.exit_code == 1
    assert re.search(r"going is running: .*; wait for its end \(ddpsched watch .*going\), or name an", result.output)
    assert "failed: a reason; run it again, or name another run" in ask("compare", failed).output
