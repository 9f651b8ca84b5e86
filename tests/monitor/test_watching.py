"""``ddpsched watch``: a run that goes on, one that has ended, and what is no run."""

import io
import json
import os
import re
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_runs import damaged, finished, going_on, line, record, write
from rich.console import Console
from typer.testing import CliRunner

from ddpsched.cli import app
from ddpsched.errors import DataError
from ddpsched.heartbeat import Heartbeat
from ddpsched.monitor import follower, watching
from ddpsched.monitor.found import find_run
from ddpsched.monitor.summary import arrays_of, summarise
from ddpsched.monitor.view import view
from ddpsched.monitor.watching import Watched
from ddpsched.records import compact
from ddpsched.run_folder import RunFolder


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def watch(folder: Path, **environ: str) -> Any:
    return CliRunner().invoke(app, ["watch", str(folder)], env={"COLUMNS": "100", **environ})


def test_a_run_that_goes_on_is_followed_to_its_end(tmp_path: Path) -> None:
    with going_on(tmp_path / "study" / "run") as (folder, writers):
        watched = Watched(folder.path)
        watched.look()
        assert watched.heading(watched.summary()) == "study/run: running"
        assert watched.notes() == ["no records yet"]
        write(writers, 0, 100)
        writers[0].write(record(100))  # the other rank is still at it
        watched.look()
        summary = watched.summary()
        assert summary is not None
        assert (watched.done, summary.num_steps, len(summary.ranks)) == (100, watching.WINDOW, 2)
        # 300 steps at 0.2 s by the clock, evaluations included, though a step takes 0.1 s
        assert watched.heading(summary) == "study/run: running, step 100 of about 400, epoch 0, 0:01:00 left"
        assert not watched.notes()
        assert not watched.ended
        folder.done(100)
    watched.look()
    assert watched.ended
    assert watched.heading(watched.summary()).startswith("study/run: done, step 100 of 400, epoch 0, took 0:00:0")


def test_a_rank_that_is_silent_is_named(tmp_path: Path) -> None:
    with going_on(tmp_path / "run") as (folder, writers):
        write(writers, 0, 3)
        hearts = [Heartbeat(folder.path / "logs", rank) for rank in range(2)]
        hearts[0].beat("vote", 3)
        hearts[1].beat("backward", 3)
        watched = Watched(folder.path)
        watched.look()
        watched.heard_s -= 60
        (note,) = watched.notes()
        assert re.fullmatch(r"no step for 0:01:00; rank 1 was last seen in backward of step 3, 0 s ago", note)
        for heart in hearts:
            heart.close()


@pytest.mark.parametrize(("started_s", "silent"), [(3600, "no step for 0:00:47"), (20, "no step for 0:00:20")])
def test_silence_is_counted_from_the_last_record(tmp_path: Path, started_s: float, silent: str) -> None:
    """Not from the begin of the view; of a run that goes on after a stop, from its start."""
    with going_on(tmp_path / "run") as (folder, writers):
        write(writers, 0, 3)
        now, status = time.time(), json.loads((folder.path / "status.json").read_text())
        started = datetime.fromtimestamp(now - started_s, UTC).isoformat()
        (folder.path / "status.json").write_text(json.dumps({**status, "started": started}))
        for writer, ago_s in zip(writers, (47, 99), strict=True):
            os.utime(writer.path, (now - ago_s, now - ago_s))
        watched = Watched(folder.path)
        watched.look()
        assert watched.notes() == [silent]
        write(writers, 3, 4)
        watched.look()
        assert not watched.notes()


def test_a_run_begun_anew_meanwhile(tmp_path: Path) -> None:
    with going_on(tmp_path / "run") as (folder, writers):
        write(writers, 0, 5)
        watched = Watched(folder.path)
        watched.look()
    for path in folder.path.glob("records*"):
        path.unlink()
    with going_on(tmp_path / "run") as (_, writers):
        write(writers, 0, 2)
        watched.look()
    assert (watched.done, len(watched.steps)) == (2, 2)


def test_the_end_is_shown_at_once(tmp_path: Path) -> None:
    result = watch(finished(tmp_path / "study" / "run"))
    assert result.exit_code == 0
    assert "study/run: done, step 20 of 20" in result.output
    assert re.search(r"^   0 +4.0 +30 +80 +20 +0.5000 +█+░+$", result.output, re.M)


def test_a_finished_run_of_which_the_parquet_alone_is_left(tmp_path: Path) -> None:
    folder = finished(tmp_path / "study" / "run", steps=70)
    compact(folder)
    of_lines = watch(folder).output
    for path in folder.glob("records-rank*.jsonl"):
        path.unlink()
    assert watch(folder).output == of_lines
    assert "study/run: done, step 70 of 70" in of_lines
    assert "last 50 steps" in of_lines
    (folder / "records.parquet").write_bytes(b"no parquet")
    result = watch(folder)
    assert result.exit_code == 1
    assert re.search(r"records\.parquet: cannot be read .*run it again", " ".join(result.output.split()))


def test_a_failed_run_says_why(tmp_path: Path) -> None:
    with going_on(tmp_path / "run") as (folder, writers):
        write(writers, 0, 2)
        folder.failed("rank 1 died")
        folder.note_sinks({"trackio": "left out from step 1 on: OSError: gone", "tensorboard": "open"})
    result = watch(folder.path)
    assert result.exit_code == 1
    assert "rank 1 died" in result.output
    assert "trackio: left out from step 1 on: OSError: gone" in result.output
    assert "tensorboard" not in result.output


def test_a_killed_run(tmp_path: Path) -> None:
    """Its status is still "running", and no process holds it."""
    with going_on(tmp_path / "run") as (folder, _):
        pass
    result = watch(folder.path)
    assert result.exit_code == 1
    assert "failed" in result.output
    assert "it was killed" in result.output
    assert "no records: remove the run" in result.output
    assert "took" not in result.output, "nobody wrote when it ended"


def test_lines_that_are_no_records_are_counted(tmp_path: Path) -> None:
    with going_on(tmp_path / "run") as (folder, writers):
        write(writers, 0, 3)
        folder.done(3)
    old = {name: value for name, value in vars(record(3)).items() if name != "global_batch"}
    with (folder.path / "records-rank0.jsonl").open("a") as file:
        file.write(json.dumps(old) + "\n" + line(record(4))[:-20])
    output = watch(folder.path).output
    assert "2 lines of records left out" in output
    assert "line 4: global_batch is missing" in " ".join(output.split())
    assert "step 3 of" in output


def test_records_behind_many_damaged_lines_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "MOST_AT_ONCE", 1000)
    watched = Watched(damaged(tmp_path / "run", lines=1000, steps=5))
    watched.look()
    assert watched.done == 5


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: None, "there is no such folder; give a run's, outputs/STUDY/RUN"),
        (lambda path: path.mkdir(), "is no run: it has no status.json; give the folder of a run"),
        (lambda path: path.write_text(""), "there is no such folder"),
    ],
    ids=["nothing", "another folder", "a file"],
)
def test_what_is_no_run(tmp_path: Path, make: Any, says: str) -> None:
    make(tmp_path / "run")
    result = watch(tmp_path / "run")
    assert result.exit_code == 1
    assert says in result.output


def test_a_run_that_loads_its_model_is_waited_for(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run", "", overwrite=False)
    with folder.held(is_main=True):
        watched = Watched(folder.path)
        watched.look()
        assert watched.heading(None).endswith("run: starting")
        assert not watched.ended
        with pytest.raises(DataError, match=r"run: its run is starting, and has no status\.json yet; ask again"):
            find_run(folder.path)


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_ctrl_c_ends_the_view_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, term: str) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(watching, "sleep", interrupt)
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("TERM", term)
    with going_on(tmp_path / "run") as (folder, writers):
        write(writers, 0, 3)
        assert watching.watch(folder.path) == 130
    assert "running, step 3 of about 400" in sys.stdout.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[?25l" not in sys.stdout.getvalue()  # type: ignore[attr-defined]


def test_without_colour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished(tmp_path / "run")
    seen = {}
    for name in ("", "1"):
        monkeypatch.setattr(sys, "stdout", Terminal())
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.setenv("NO_COLOR", name)
        watching.watch(tmp_path / "run")
        seen[name] = sys.stdout.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[32m" in seen[""]
    assert not re.search(r"\x1b\[3\dm", seen["1"])
    assert "█" in seen["1"]


@pytest.mark.parametrize("width", [40, 60, 100])
@pytest.mark.parametrize("measured", [True, False])
def test_it_fits_the_terminal(width: int, measured: bool) -> None:
    bare: dict[str, Any] = {} if measured else {"compute_s": None, "wait_s": None}
    rows = [record(step, rank, 64, **bare) for step in range(3) for rank in range(64)]
    out = Console(file=Terminal(), width=width, height=20, markup=False, emoji=False, no_color=True)
    out.print(view("run: running", [], summarise(arrays_of(rows), by_tokens=False), out))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", out.file.getvalue()).splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= width
    assert len(lines) <= 20
    assert lines[-1] == "and 53 ranks that compute less"
    assert any(row.startswith("   0") for row in lines), "the slowest rank is shown"


def test_a_loop_of_ones_own(tmp_path: Path) -> None:
    from ddpsched import Recorder

    folder = tmp_path / "mine" / "loop"
    with Recorder(folder, [np.array([3, 4]), np.array([5, 1])], lengths_of=list) as recorder:
        for _ in recorder:
            recorder.log(loss=0.25)
        watched = Watched(folder)
        watched.look()
        summary = watched.summary()
        assert summary is not None
        assert watched.heading(summary) == "mine/loop: running, step 2, epoch 0"
        assert (summary.loss, summary.ranks[0].compute_s) == (0.25, None)
    result = watch(folder)
    assert result.exit_code == 0
    assert "step ms" in result.output
    assert "compute ms" not in result.output
