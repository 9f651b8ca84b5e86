"""A rank whose launcher has died ends, even where the launcher was gone before the rank looked for the first time."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddpsched.processes import Process
from ddpsched.watch import launcher_is_gone

ROOT = Path(__file__).parents[1]
LATE_RANK = """
import os, sys, time
while os.getppid() == int(sys.argv[1]):
    time.sleep(0.01)
from ddpsched.watch import start_watch
watch = start_watch()
watch.report_to(lambda: None, lambda reason: open(sys.argv[2], "w").write(reason))
time.sleep(30)
"""
LAUNCHER = """
import os, subprocess, sys
subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid()), *sys.argv[2:]])
"""
AS_LAUNCHED = {
    "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "none",
}  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="a lost launcher is told by /proc, which Linux alone has")
def test_a_launcher_that_died_before_the_watch_began_is_noticed(tmp_path: Path) -> None:
    said = tmp_path / "said"
    subprocess.run(
        [sys.executable, "-c", LAUNCHER, LATE_RANK, str(said)], env={**os.environ, **AS_LAUNCHED}, cwd=ROOT, check=True
    )
    deadline = time.monotonic() + 10
    while not said.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert said.exists(), "the rank lives on without a launcher"
    time.sleep(0.1)
    assert said.read_text() == "the launcher died"


@pytest.mark.skipif(sys.platform != "linux", reason="a lost launcher is told by /proc, which Linux alone has")
@pytest.mark.parametrize(
    ("parent", "gone"),
    [("itself", False), ("nobody", False), ("adopter", True), ("script", False), ("adopter, another launcher", False)],
)
def test_only_of_a_torchrun_that_is_gone(monkeypatch: pytest.MonkeyPatch, parent: str, gone: bool) -> None:
    import torch  # noqa: F401 (a launcher has loaded it)

    bare = {name: value for name, value in os.environ.items() if name not in AS_LAUNCHED}
    env = bare | {"RANK": "0"} if parent == "script" else bare  # a script around the rank has its environment
    process = subprocess.Popen(["sleep", "30"], env=env)
    for name, value in AS_LAUNCHED.items():
        monkeypatch.setenv(name, value)
    if parent == "adopter, another launcher":
        monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    pid = {"itself": os.getpid(), "nobody": 2**22 + 1}.get(parent, process.pid)
    monkeypatch.setattr("ddpsched.watch.os.getppid", lambda: pid)
    try:
        while b"sleep" not in Path(f"/proc/{process.pid}/cmdline").read_bytes():
            time.sleep(0.01)
        assert launcher_is_gone() is gone
    finally:
        process.kill()
        process.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells a process of its parent's death")
def test_a_process_ends_with_its_parent(tmp_path: Path) -> None:
    starts = "import subprocess, sys, time; from ddpsched.processes import ends_with_its_parent"
    starts += "; print(subprocess.Popen(['sleep', '60'], preexec_fn=ends_with_its_parent()).pid, flush=True)"
    starts += "; time.sleep(60)"
    parent = subprocess.Popen([sys.executable, "-c", starts], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert parent.stdout is not None
    child = Process.of(int(parent.stdout.readline()))
    assert not child.is_gone
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 5
    while not child.is_gone and time.monotonic() < deadline:
        time.sleep(0.01)
    assert child.is_gone
