"""One run at a time in a folder: a lock names its holder, and a dead holder does not keep it."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks
from runs import config_of, folder_of

from ddpsched import processes
from ddpsched.errors import RankFailure, RunHeldError
from ddpsched.processes import FIRST_NAMESPACE, Host, Place, Process
from ddpsched.run_folder import read_status
from ddpsched.run_lock import RunLock, holder, launch_id
from ddpsched.run_loop import run

HERE = Place.here()
GONE = Process(HERE.process.pid, 1)  # this process number with another start time, as if it was reused


def write_lock(folder: Path, place: Place) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lock").write_text(json.dumps({"launch": "another", "place": asdict(place), "since": "2026-01-01"}))


@pytest.fixture
def neighbour() -> Any:
    """Start another process that lives."""
    process = subprocess.Popen(["sleep", "60"])
    yield Process.of(process.pid)
    process.kill()
    process.wait()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("executor", ["simulated", "virtual"])
def test_a_living_runs_folder_is_refused_and_untouched(tmp_path: Path, neighbour: Process, executor: str) -> None:
    config = config_of(tmp_path, executor)
    run(config)
    write_lock(config.run_dir, replace(HERE, process=neighbour))
    before = contents(tmp_path)
    words = rf"{config.run_dir} is held by a run \(process {neighbour.pid} on \S+, started 2026-01-01\); wait for"
    with pytest.raises(RunHeldError, match=words):
        run(config, overwrite=True)
    assert contents(tmp_path) == before


def refused_rank(outputs: Path) -> str:
    if os.environ["RANK"] == "0":
        time.sleep(0.5)  # the others arrive first
    with pytest.raises(RunHeldError) as refused:
        run(config_of(outputs, "distributed"), overwrite=True)
    return str(refused.value)


def test_all_ranks_are_refused_alike(tmp_path: Path, neighbour: Process) -> None:
    config = config_of(tmp_path, "distributed")
    write_lock(config.run_dir, replace(HERE, process=neighbour))
    before = contents(tmp_path)
    one, other = run_ranks(refused_rank, 2, tmp_path)
    assert one == other
    assert f"process {neighbour.pid}" in one
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    "place",
    [
        replace(HERE, process=GONE),
        replace(HERE, process=Process(2**22 + 1, 1)),
    ],
    ids=["number given to another", "no such process"],
)
def test_a_lock_of_a_dead_run_is_taken_over(tmp_path: Path, place: Place) -> None:
    config = config_of(tmp_path, "simulated")
    write_lock(config.run_dir, place)
    run(config)
    assert read_status(config.run_dir)["state"] == "done"
    assert not (config.run_dir / "lock").exists()


def test_a_zombie_is_dead(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    place = replace(HERE, process=Process.of(process.pid))
    while place.process.state != "Z":
        time.sleep(0.01)
    assert place.judge() == "gone"
    process.wait()


MACHINE = Host("node", "its id", "this start", FIRST_NAMESPACE)


@pytest.mark.parametrize(
    ("host", "verdict"),
    [
        (MACHINE, "gone"),
        (replace(MACHINE, machine=None), "unknown"),
        (replace(MACHINE, machine=""), "unknown"),
        (replace(MACHINE, pid_namespace="pid:[4026532000]"), "unknown"),
        (replace(MACHINE, pid_namespace=None), "unknown"),
    ],
    ids=["machine", "no id", "empty id", "container", "no namespace"],
)
def test_another_start_is_seen_outside_containers_only(
    monkeypatch: pytest.MonkeyPatch, host: Host, verdict: str
) -> None:
    """Containers of one image share its machine id on any machine, so the holder may live elsewhere."""
    monkeypatch.setattr(Host, "here", lambda: host)
    assert Place(replace(host, boot="an earlier one"), GONE).judge() == verdict


def test_what_proc_hides_is_not_gone(monkeypatch: pytest.MonkeyPatch, neighbour: Process) -> None:
    """Another user's process may be hidden by hidepid; this process is known to live."""
    monkeypatch.setattr(processes, "_stat", lambda pid: None)
    assert replace(HERE, process=neighbour).judge() == "unknown"
    assert replace(HERE, process=Process(2**22 + 1, 1)).judge() == "gone"
    assert Place.here().judge() == "lives"


@pytest.mark.parametrize("field", ["node", "machine", "pid_namespace"])
def test_what_cannot_be_judged_is_refused_with_the_file_to_delete(tmp_path: Path, field: str) -> None:
    """The lock of another machine or container is refused, even if its process number exists here."""
    config = config_of(tmp_path, "simulated")
    elsewhere = {field: "another", "boot": "its own"} if field != "pid_namespace" else {field: "another"}
    write_lock(config.run_dir, Place(replace(HERE.host, **elsewhere), GONE))
    with pytest.raises(RunHeldError, match=rf"cannot be seen from here.*delete {config.run_dir / 'lock'}"):
        run(config)
    (config.run_dir / "lock").unlink()
    run(config)


def test_half_a_lock_holds_nothing(tmp_path: Path) -> None:
    config = config_of(tmp_path, "simulated")
    write_lock(config.run_dir, HERE)
    (config.run_dir / "lock").write_text('{"launch": "a')
    run(config)


def test_what_cannot_start_leaves_no_folder(tmp_path: Path) -> None:
    config = config_of(tmp_path, "simulated", data={"path": "/nowhere.tsv"})
    with pytest.raises(Exception, match="nowhere"):
        run(config)
    assert not list(tmp_path.iterdir())


def contend(folder: Path, start: Any, results: Any) -> None:
    lock = RunLock(folder)
    start.wait()
    try:
        lock.take()
        results.put("got it")
    except RunHeldError:
        results.put("refused")
    start.wait()  # the holder lives while others still try


@pytest.mark.parametrize("stale", [False, True])
def test_of_many_at_the_same_moment_one_wins(tmp_path: Path, stale: bool) -> None:
    """The lock is new, or all of them see that its run is dead."""
    many, context = 6, multiprocessing.get_context("fork")
    for number in range(8):
        folder = tmp_path / str(number)
        if stale:
            write_lock(folder, replace(HERE, process=GONE))
        start, results = context.Barrier(many), context.Queue()
        crowd = [context.Process(target=contend, args=(folder, start, results)) for _ in range(many)]
        for process in crowd:
            process.start()
        outcomes = sorted(results.get(timeout=20) for _ in crowd)
        for process in crowd:
            process.join()
        assert outcomes == ["got it"] + ["refused"] * (many - 1)


def test_a_run_in_another_thread_is_another_run(tmp_path: Path) -> None:
    ended: list[str] = []

    def second() -> None:
        try:
            run(config_of(tmp_path, "simulated"))
        except RunHeldError:
            ended.append("refused")

    folder = folder_of(config_of(tmp_path, "simulated"))
    with folder.held(is_main=True):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    assert ended == ["refused"]


def test_a_killed_run_is_not_said_to_be_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody was left to record the failure, so a reader recognises it by the lock."""
    config = config_of(tmp_path, "simulated")
    context = multiprocessing.get_context("fork")
    process = context.Process(target=run_until_killed, args=(config,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert json.loads((config.run_dir / "status.json").read_text())["state"] == "running"
    assert (config.run_dir / "lock").exists()
    status = read_status(config.run_dir)
    assert status["state"] == "failed"
    assert "killed" in status["reason"]
    run(config)
    assert read_status(config.run_dir)["state"] == "done"


def run_until_killed(config: Any) -> None:
    def kill(*_: Any) -> None:
        assert read_status(config.run_dir)["state"] == "running"
        os.kill(os.getpid(), signal.SIGKILL)

    pytest.MonkeyPatch().setattr("ddpsched.run_loop.compact", kill)
    run(config)


def test_a_failure_is_not_written_over_the_run_that_came_after(tmp_path: Path, neighbour: Process) -> None:
    config = config_of(tmp_path, "simulated")
    late = folder_of(config)
    write_lock(config.run_dir, replace(HERE, process=neighbour))
    late.failed("an echo of the run before")
    assert not (config.run_dir / "status.json").exists()


def stored(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "status.json").read_text(encoding="utf-8"))


def test_a_rank_that_has_not_met_rank_0_leaves_a_living_run_alone(tmp_path: Path) -> None:
    """A second launch at the same address and port looks like the first; both are this process."""
    config = config_of(tmp_path, "simulated")
    first, second, stranger = (folder_of(config) for _ in range(3))
    with first.held(is_main=True), stranger.held(is_main=False):
        first.begin({})
        stranger.lock.await_rank_0(1.0)
        stranger.failed("rank 0 died")
        assert stored(first.path)["state"] == "running"
        stranger.lock.set_attempt(stranger.lock.attempt + 1)  # the refused launch's rank 0 had another attempt number
        stranger.failed("rank 0 died")
        assert stored(first.path)["state"] == "running"
        second.lock.set_attempt(first.lock.attempt)
        second.failed("its own rank 1")
        assert stored(first.path)["reason"] == "its own rank 1"


def test_a_rank_that_has_not_met_rank_0_says_why_it_failed(tmp_path: Path) -> None:
    """Its reason replaces an earlier run's status too, as the living rank 0 has not begun."""
    config = config_of(tmp_path, "simulated")
    run(config)
    left = stored(config.run_dir) | {"state": "running"}
    (config.run_dir / "status.json").write_text(json.dumps(left), encoding="utf-8")
    main, other = (folder_of(config) for _ in range(2))
    with main.held(is_main=True), other.held(is_main=False):
        other.failed("no data")
    assert stored(config.run_dir)["reason"] == "no data"


def test_a_restarted_rank_does_not_take_the_dead_attempts_lock_for_its_rank_0s(tmp_path: Path) -> None:
    config = config_of(tmp_path, "simulated")
    before, after, main = (folder_of(config) for _ in range(3))
    with before.held(is_main=True):
        before.begin({})
        lock = json.loads((before.path / "lock").read_text())
        lock["place"]["process"]["start_ticks"] = GONE.start_ticks
        (before.path / "lock").write_text(json.dumps(lock))
        with pytest.raises(RankFailure, match="did not lock"):
            after.lock.await_rank_0(0.1)
        after.failed("rank 0 died early")
        assert stored(before.path)["reason"] == "rank 0 died early"
        assert not (before.path / "lock").exists()
        (before.path / "lock").write_text(json.dumps(lock))
        with main.held(is_main=True):
            after.lock.await_rank_0(0.1)


def test_the_first_reason_of_each_restart_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(tmp_path, "simulated")
    for restart in "01":
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restart)
        for reason in ("cause", "echo"):
            folder_of(config).failed(f"{reason} {restart}")
        assert stored(config.run_dir)["reason"] == f"cause {restart}"


def test_a_reader_of_the_lock_always_sees_a_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A holder is also seen between the two steps of overwriting a longer lock."""
    write_lock(tmp_path, replace(HERE, process=GONE))
    (tmp_path / "lock").write_text((tmp_path / "lock").read_text().ljust(2000))
    honest, seen = os.ftruncate, []

    def ftruncate(file: int, size: int) -> None:
        seen.append(holder(tmp_path))
        honest(file, size)
        seen.append(holder(tmp_path))

    monkeypatch.setattr(os, "ftruncate", ftruncate)
    RunLock(tmp_path).take()
    assert [held and held.place for held in seen] == [HERE, HERE]


def test_ranks_of_a_launch_are_one_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "RANK": "0"}
    first = launch_id(environ)
    assert first == launch_id({**environ, "RANK": "1"})
    assert first == launch_id({**environ, "TORCHELASTIC_RESTART_COUNT": "1"}), "each machine's agent counts for itself"
    monkeypatch.setattr(os, "uname", lambda: type("Name", (), {"nodename": "another machine"}))
    assert first != launch_id(environ), "every machine has a port 29500 of its own"
    assert launch_id({}) != launch_id(environ)
