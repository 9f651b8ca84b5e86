"""A check that raises, dies or hangs fails alone: the others are made, and no process is left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ddpsched.doctor.finding import Finding, Setting
from ddpsched.doctor.isolation import Probe, examine
from ddpsched.processes import Process

FAR = 60.0


def good(setting: Setting) -> list[Finding]:
    return [Finding("good", "ok", f"in process {os.getpid()}")]


def crashes(_: Setting) -> list[Finding]:
    print("printed before the end", flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
    return []


def leaves(_: Setting) -> list[Finding]:
    os._exit(3)


def raises(_: Setting) -> list[Finding]:
    raise ValueError("a\nreason")


def hangs(setting: Setting) -> list[Finding]:
    """Hang, with a process in a session of its own, as torchrun's ranks are in."""
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    other = subprocess.Popen(command, start_new_session=True)
    (setting.outputs / "pids").write_text(f"{os.getpid()} {other.pid}")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(60)
    return []


def probe(measure: Callable[[Setting], Sequence[Finding]], limit_s: float = 20.0) -> Probe:
    return Probe(measure.__name__, measure, limit_s, "do this")


def made(tmp_path: Path, *probes: Probe, within_s: float = FAR) -> list[Finding]:
    setting = Setting(tmp_path, tmp_path)
    return [each for findings in examine(probes, setting, time.monotonic() + within_s) for each in findings]


BAD = {
    "crashes": (crashes, "its process died (killed by SIGSEGV); printed last: printed before the end"),
    "leaves": (leaves, "its process died (exit code 3)"),
    "raises": (raises, "raised ValueError: a reason"),
}


@pytest.mark.parametrize("how", BAD)
def test_a_check_that_cannot_be_made_fails_alone(tmp_path: Path, how: str) -> None:
    bad, says = BAD[how]
    before, found, after = made(tmp_path, probe(good), probe(bad), probe(good))
    assert found == Finding(how, "fail", says, "do this")
    assert [before.state, after.state] == ["ok", "ok"]
    assert (before.says == after.says) == (how == "raises"), "only a process that died is replaced"


def test_a_check_that_hangs_is_ended_with_all_its_processes(tmp_path: Path) -> None:
    begin = time.monotonic()
    found, after = made(tmp_path, probe(hangs, 6.0), probe(good))
    assert time.monotonic() - begin < 30
    assert found == Finding("hangs", "fail", "gave no result within 6 s, and was ended", "do this")
    assert after.state == "ok"
    for pid in (tmp_path / "pids").read_text().split():
        process = Process.of(int(pid))
        deadline = time.monotonic() + 5
        while not process.is_gone and time.monotonic() < deadline:
            time.sleep(0.05)
        assert process.is_gone


def test_no_check_goes_beyond_the_deadline(tmp_path: Path) -> None:
    begin = time.monotonic()
    first, *rest = made(tmp_path, probe(hangs), probe(good), probe(good), within_s=2.0)
    assert time.monotonic() - begin < 8
    assert "gave no result within 2 s" in first.says
    assert [each.says for each in rest] == ["not made: the time of all checks was over"] * 2
    assert {each.state for each in rest} == {"fail"}
