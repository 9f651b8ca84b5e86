"""However a rank ends, at whatever moment, the run says so; and a run that is done stays so."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ranks import run_ranks
from runs import config_of, records_of

from ddpsched.config import RunConfig
from ddpsched.guard import Guard
from ddpsched.run_folder import read_status
from ddpsched.run_loop import run
from ddpsched.watch import Watch
from ddpsched.world import World

ROOT = Path(__file__).parents[1]
CONFIG = """
outputs = "{outputs}"
name = "run"
steps = 3
global_batch = 8
world_size = 2
executor.kind = "distributed"
data.size = 50
"""


def launch(tmp_path: Path, plant: str, suspended_s: float = 20.0) -> tuple[int, dict[str, str], str]:
    """Two ranks under torchrun: its exit code, what status.json itself says, and what was printed."""
    config = tmp_path / "run.toml"
    config.write_text(CONFIG.format(outputs=tmp_path), encoding="utf-8")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    launcher += ["-m", "experiments.reliability.planted"]
    environ = {"OMP_NUM_THREADS": "1", "DDPSCHED_PLANT": plant, "DDPSCHED_SUSPENDED_S": str(suspended_s)}
    process = subprocess.run(
        [sys.executable, *launcher, str(config)],
        cwd=ROOT, env={**os.environ, **environ}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert not list(ranks_of(config)), "no rank is left behind"
    status = tmp_path / "runs" / "run" / "status.json"
    return process.returncode, json.loads(status.read_text(encoding="utf-8")), process.stderr


def ranks_of(config: Path) -> list[str]:
    process = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return [line for line in process.stdout.splitlines() if str(config) in line]


EARLY = [
    "start",
    "ddpsched.config:load",
    "ddpsched.config:RunConfig.load_samples",
    "ddpsched.training.distributed:start_group",
    "torch.distributed:new_group",
    "ddpsched.training.learner:Learner.__init__",
    "ddpsched.guard:Guard.watch_peers",
    "ddpsched.guard:Guard.begun",
]
LATE = {0: "ddpsched.run_loop:compact", 1: "ddpsched.training.group_exchange:GroupExchange.part"}
MOMENTS = [(rank, at) for rank in (0, 1) for at in (*EARLY, LATE[rank])]


def quick(*few: tuple[int, str]) -> list[Any]:
    """All moments, those but a few marked as slow."""
    return [pytest.param(*each, marks=() if each in few else pytest.mark.slow) for each in MOMENTS]


@pytest.mark.parametrize(("rank", "at"), quick((0, "ddpsched.config:RunConfig.load_samples")))
def test_a_killed_rank_is_named_whenever_it_dies(tmp_path: Path, rank: int, at: str) -> None:
    late = "0 3 ddpsched.run_loop:compact;" if at == LATE[1] else ""  # rank 0 is still at it
    code, status, printed = launch(tmp_path, f"{late}{rank} kill {at}")
    assert code == 1
    assert status["state"] == "failed"
    assert f"rank {rank} died" in status["reason"]
    assert f"rank {rank} died" in printed


IN_THE_LOCK = (0, "ddpsched.run_lock:_is_file")  # with the lock's file in hand, which rank 1 must write under


@pytest.mark.parametrize(("rank", "at"), [IN_THE_LOCK, *quick()])
def test_a_suspended_rank_is_named_and_ended(tmp_path: Path, rank: int, at: str) -> None:
    late = "0 6 ddpsched.run_loop:compact;" if at == LATE[1] else ""
    code, status, printed = launch(tmp_path, f"{late}{rank} stop {at}", suspended_s=2.0)
    assert code == 1
    assert status["state"] == "failed"
    assert re.search(rf"rank {rank} was suspended for \d+ s", status["reason"])
    assert f"rank {rank} was suspended" in printed


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """One that takes no signals, and whose end is an exception."""
    monkeypatch.setattr(threading.Thread, "start", lambda thread: None)
    monkeypatch.setattr(signal, "pthread_sigmask", lambda *_: None)
    monkeypatch.setattr("ddpsched.watch.ctypes.CDLL", lambda _: None)
    monkeypatch.setattr("ddpsched.watch.os._exit", sys.exit)
    return Watch()


def test_a_suspended_peer_has_ended_before_the_reason_is_written(watch: Watch) -> None:
    peer = subprocess.Popen(["sleep", "60"])
    seen: list[str] = []
    try:
        watch.add_peers([peer.pid], this_rank=1)
        peer.send_signal(signal.SIGSTOP)
        while not watch.suspended():
            time.sleep(0.01)
        watch.report_to(lambda: None, lambda reason: seen.append(f"{reason}, {watch.lost()}"))
        with pytest.raises(SystemExit):
            watch._end("it was suspended")
    finally:
        peer.kill()
        peer.wait()
    assert seen == ["it was suspended, [0]"]


def test_a_collective_that_breaks_off_then_is_of_a_suspended_rank(watch: Watch) -> None:
    """The main thread may be the first to write why, as the watch ends the peer that it waits for."""
    peer = subprocess.Popen(["sleep", "60"])
    rank: Any = SimpleNamespace(_world=World(1, 2), _watch=watch)
    try:
        watch.add_peers([peer.pid], this_rank=1)
        peer.send_signal(signal.SIGSTOP)
        while not watch.suspended():
            time.sleep(0.01)
        assert "rank 0 was suspended and did not answer" in str(Guard._explain(rank, RuntimeError("timed out")))
        watch._count_suspended()
    finally:
        peer.kill()
        peer.wait()
    assert re.match(r"rank 0 was suspended for \d+ s", str(Guard._explain(rank, RuntimeError("connection closed"))))


def test_a_rank_that_says_why_it_failed_is_left_the_time_to_do_so(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one fails with it and ends sooner, which is no news."""
    waits, reported = iter([0.0, 0.0, 0.3]), []
    watch.report_to(lambda: None, reported.append)
    monkeypatch.setattr(watch, "_loss", lambda asked: "rank 0 died")
    monkeypatch.setattr(signal, "sigtimedwait", lambda *_: time.sleep(next(waits)))
    watch.LEAVE_S = 0.2
    watch.hold_reports()
    with pytest.raises(SystemExit):
        watch._listen()
    assert reported == ["rank 0 died"]
    assert not list(waits), "not before its time was over"


def unreadable(*_: Any) -> Any:
    raise ValueError("half a file")


def test_what_cannot_be_read_or_written_does_not_end_the_watch(
    watch: Watch, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch.report_to(lambda: None, unreadable, unreadable)
    monkeypatch.setattr(watch, "_loss", lambda asked: "rank 0 died")
    monkeypatch.setattr(signal, "sigtimedwait", lambda *_: None)
    with pytest.raises(SystemExit):
        watch._listen()
    printed = capsys.readouterr().err
    assert printed.startswith("whether the run is done cannot be read (ValueError('half a file'))")
    assert "Traceback" in printed


def late_at_the_end(outputs: Path, late: int) -> float:
    """Return the seconds of a run on this rank, where rank ``late`` goes on 2 s after the last barrier of the loop."""
    from ddpsched.training.group_exchange import GroupExchange

    honest, calls = GroupExchange.barrier, [0]

    def barrier(self: GroupExchange) -> None:
        honest(self)
        calls[0] += 1
        if calls[0] == 2 and os.environ["RANK"] == str(late):
            time.sleep(2)

    GroupExchange.barrier = barrier  # type: ignore[method-assign]
    begin = time.monotonic()
    run(config_of(outputs, "distributed"))
    return time.monotonic() - begin


@pytest.mark.parametrize("late", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_rank_may_be_late_at_the_end(tmp_path: Path, late: int) -> None:
    took = run_ranks(late_at_the_end, 2, tmp_path, late)
    assert min(took) > 2, "nobody leaves before the others can"
    assert read_status(tmp_path / "runs" / "minmax-distributed")["state"] == "done"
    assert len(records_of(tmp_path / "runs" / "minmax-distributed")) == 8


def slow_compaction(outputs: Path) -> None:
    """Rank 0 writes for longer than the others' group waits for anything."""
    from ddpsched import run_loop

    honest = run_loop.compact
    run_loop.compact = lambda folder: time.sleep(9) or honest(folder)
    config = config_of(outputs, "distributed")
    run(config.model_copy(update={"executor": config.executor.model_copy(update={"timeout_s": 6.0})}))


@pytest.mark.slow
def test_writing_may_take_longer_than_the_time_out(tmp_path: Path) -> None:
    run_ranks(slow_compaction, 2, tmp_path)
    assert read_status(tmp_path / "runs" / "minmax-distributed")["state"] == "done"


@pytest.mark.slow
@pytest.mark.parametrize(
    "plant",
    [
        "0 3 ddpsched.watch:Watch.stop;1 kill ddpsched.watch:Watch.stop",
        "1 stop ddpsched.training.group_exchange:GroupExchange.part",
    ],
    ids=["dies", "is suspended"],
)
def test_a_run_that_is_done_stays_so(tmp_path: Path, plant: str) -> None:
    """Whatever becomes of rank 1 then; that the launcher reports it is right."""
    code, status, printed = launch(tmp_path, plant, suspended_s=2.0)
    assert code == 1
    assert status["state"] == "done"
    assert "error: rank" not in printed


@pytest.mark.slow
def test_a_job_suspended_as_a_whole_goes_on(tmp_path: Path) -> None:
    """For longer than one rank alone may be: who would count is suspended as well."""
    config = config_of(tmp_path, "distributed").model_copy(update={"steps": 300})
    stopped = subprocess.Popen([sys.executable, "-c", SUSPEND, str(tmp_path / "runs" / "minmax-distributed")], cwd=ROOT)
    run_ranks(impatient, 2, config)
    assert stopped.wait() == 0, "both were suspended"
    assert read_status(config.run_dir)["state"] == "done"


SUSPEND = """
import json, os, signal, sys, time
from pathlib import Path
pids = []
while len(pids) < 2:
    time.sleep(0.1)
    pids = [int(p.read_text()) for p in Path(sys.argv[1]).parent.glob("pid*") if p.read_text()]
while not (Path(sys.argv[1]) / "records-rank0.jsonl").exists():
    time.sleep(0.1)
for what, wait in ((signal.SIGSTOP, 6), (signal.SIGCONT, 0)):
    for pid in pids:
        os.kill(pid, what)
    time.sleep(wait)
"""


def impatient(config: RunConfig) -> None:
    Watch.SUSPENDED_S = 2.0
    config.run_dir.parent.mkdir(parents=True, exist_ok=True)
    (config.run_dir.parent / f"pid{os.environ['RANK']}").write_text(str(os.getpid()))
    run(config)
