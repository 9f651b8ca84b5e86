"""Machines of a launch that do not meet are named, in time; a full disk ends a launch, and hides no result."""

import errno
import io
import os
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from studies import write_study

from ddpsched.config import dump, parse
from ddpsched.records import write_json
from experiments import launch_progress, launching
from experiments.launch_progress import StepLine
from experiments.launches import Launch
from experiments.launching import Node, config_path, run_launch
from experiments.study import Compare
from experiments.sweep import sweep

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as a write raises it: it names no file


@pytest.mark.parametrize("live", [True, False])
def test_how_far_a_launch_is_is_drawn_on_a_terminal_alone(
    live: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch_progress, "EVERY_S", 0.0)
    printed, log = io.StringIO(), tmp_path / "logs" / "rank0.log"
    console = Console(file=printed, force_terminal=live, width=80, _environ={"TERM": "xterm"})
    with StepLine(console, tmp_path) as steps:
        steps.look()
        log.parent.mkdir()
        log.write_text("12:00:00 step 7 of about 9, 2.0 s/step, 0:00:04 left\n")
        os.utime(log, (time.time() - 60, time.time() - 60))
        steps.look()
        assert "step 7" not in printed.getvalue(), "of an earlier start"
        log.write_text("12:00:00 step 8 of about 9, 2.0 s/step, 0:00:02 left\n12:00:01 writing\n")
        steps.look()
    assert ("step 8 of about 9, 2.0 s/step, 0:00:02 left" in printed.getvalue()) == live
    assert "writing" not in printed.getvalue()


@pytest.mark.slow
def test_machines_that_do_not_meet_are_named_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "MEETING_S", 2)
    run = parse({"outputs": str(tmp_path), "steps": 2, "world_size": 2, "executor": {"kind": "distributed"}})
    launch = Launch((run,), "apart", (run.name,), Compare())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    begin = time.monotonic()
    ((_, reason),) = run_launch(launch, (), Node(0, 2, f"127.0.0.1:{port}", "7.0"))
    assert reason is not None
    assert reason.startswith(f"its 2 machines did not meet at 127.0.0.1:{port} within 2 s: each must reach the first")
    assert time.monotonic() - begin < 60, "torch's own time-out is ten minutes"
    assert run_launch(launch, (), Node(1, 2, f"127.0.0.1:{port}", "7.0")) == [], "machine 0 says what became of it"
    assert "Dist" in (run.run_dir / "logs" / "launcher-machine1.log").read_text()


def test_files_of_two_machines_and_two_starts_differ(tmp_path: Path) -> None:
    run = parse({"outputs": str(tmp_path), "steps": 2})
    nodes = (Node(), Node(0, 2, "", "7.0"), Node(1, 2, "", "7.0"), Node(0, 2, "", "7.1"))
    assert len({config_path(run, node) for node in nodes}) == 4


# --- a full disk ----------------------------------------------------------------------------------------------


def printing(text: str, code: int, then: Callable[[], object] = lambda: None) -> Any:
    """Return what starts a process that prints ``text``, does ``then`` and ends."""

    def start(words: Any, stdout: Any, **options: Any) -> Any:
        stdout.write(text.encode())
        stdout.flush()
        then()
        return SimpleNamespace(wait=lambda timeout=None: code)

    return start


def test_a_launch_that_a_full_disk_stops_is_reported_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = iter([FULL])

    def filling(run: Any) -> str:
        for error in written:
            raise error
        return dump(run)

    monkeypatch.setattr(launching, "dump", filling)
    monkeypatch.setattr(launching.subprocess, "Popen", printing("error: why\n", 1))
    study, folder = str(write_study(tmp_path)), tmp_path / "small"
    assert sweep(study, [f"outputs={tmp_path}", "seed=0"]) == 1
    said = capsys.readouterr().out
    stopped, other = sorted(("static-seed0", "minmax-seed0"), key=said.index)
    assert (
        f"failed {folder / stopped}: no space left for {folder / stopped}; free some, or write to another disk" in said
    )
    assert f"failed {folder / other}: why" in said
    assert "2 of 2 runs failed" in said
    assert not list(folder.glob(".*")), "nothing is left beside the folders"


@pytest.mark.parametrize(("done", "text"), [(True, ""), (False, "error: why\n"), (False, "Killed\n")])
def test_a_log_that_cannot_be_written_hides_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], done: bool, text: str
) -> None:
    run = parse({"outputs": str(tmp_path), "steps": 2})
    run.run_dir.mkdir(parents=True)
    (run.run_dir / "logs").write_text("no folder")  # so that no log can be written there

    def end() -> None:
        if done:
            write_json(run.run_dir / "status.json", {"state": "done"})

    monkeypatch.setattr(launching.subprocess, "Popen", printing(text, 1 - done, end))
    ((_, reason),) = run_launch(Launch((run,), "apart", (run.name,), Compare()))
    logs = run.run_dir / "logs"
    unlogged = f"not all of its output is in {logs / 'launcher.log'}: {logs}: File exists"
    assert unlogged in capsys.readouterr().out
    assert reason == (None if done else "why" if "why" in text else f"exit code 1; {unlogged}")
    assert not list(run.run_dir.parent.glob(".*")), "nothing is left beside the folder"


def test_a_disk_too_full_for_the_text_of_an_error_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = parse({"outputs": str(tmp_path), "steps": 2})
    monkeypatch.setattr(launching.subprocess, "Popen", printing("", 1))
    launch = Launch((run,), "apart", (run.name,), Compare())
    ((_, reason),) = run_launch(launch)
    assert reason == f"exit code 1; see {run.run_dir / 'logs' / 'launcher.log'}"
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=4096))
    ((_, reason),) = run_launch(launch)
    assert reason is not None
    assert reason.startswith(
        f"exit code 1; no space left for {run.run_dir.parent}; free some, or write to another disk"
    )
