"""Machines of a launch that do not meet are named, in time."""

import socket
import time
from pathlib import Path

import pytest

from ddpsched.config import parse
from experiments import launching
from experiments.launches import Launch
from experiments.launching import Node, config_path, run_launch
from experiments.study import Compare


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
