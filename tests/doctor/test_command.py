"""``ddpsched doctor``: one line a finding, or JSON; exit code 0 only where no check fails; less than a minute."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ddpsched.doctor import command
from ddpsched.doctor.command import Request, answer
from ddpsched.doctor.finding import Finding, Setting
from ddpsched.doctor.isolation import Probe
from ddpsched.errors import ConfigError

ROOT = Path(__file__).parents[2]


def good(setting: Setting) -> list[Finding]:
    return [Finding("good", "ok", f"[0.5] s in {setting.outputs.name}", numbers={"took_s": 0.5})]


def warns(_: Setting) -> list[Finding]:
    return [Finding("slow", "warn", "5 s", "wait")]


def fails(_: Setting) -> list[Finding]:
    return [Finding("wrong", "fail", "1, expected 2", "correct it"), Finding("odd", "skip", "none here")]


def probes(*functions: Any) -> list[Probe]:
    return [Probe(each.__name__, each, 20.0, "do this") for each in functions]


def test_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not answer(Request(tmp_path / "out"), probes(good, warns, fails))
    *lines, wall, last = capsys.readouterr().out.splitlines()
    assert lines == [
        "ok    good             [0.5] s in out",
        "warn  slow             5 s -> wait",
        "fail  wrong            1, expected 2 -> correct it",
        "skip  odd              none here",
    ]
    assert wall.startswith("ok    wall clock")
    assert last.startswith("5 checks in ")
    assert last.endswith(" s: 1 failed: wrong, 1 warned")


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(Request(tmp_path, json=True), probes(good, warns)), "warnings are allowed"
    printed = json.loads(capsys.readouterr().out)
    assert set(printed) == {"holds", "took_s", "findings"}
    assert printed["holds"] is True
    assert printed["took_s"] > 0
    assert printed["findings"][:2] == [
        {**good(Setting(tmp_path, tmp_path))[0].as_dict(), "numbers": {"took_s": 0.5}},
        {"name": "slow", "state": "warn", "says": "5 s", "remedy": "wait", "numbers": {}},
    ]  # fmt: skip
    assert not answer(Request(tmp_path, json=True), probes(fails))
    assert json.loads(capsys.readouterr().out)["holds"] is False


def test_under_a_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="WORLD_SIZE = 2: doctor starts ranks itself; run it as one process"):
        answer(Request(tmp_path), probes(good))


def test_limits() -> None:
    assert max(each.limit_s for each in command.PROBES) <= 40 < command.WITHIN_S < 60
    assert len({each.name for each in command.PROBES}) == len(command.PROBES)


@pytest.mark.slow
def test_the_command_itself(tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    begin = time.monotonic()
    words = ["-m", "ddpsched", "doctor", "--json", "--outputs", str(tmp_path / "outputs")]
    process = subprocess.run([sys.executable, *words], cwd=ROOT, env=environ, capture_output=True, text=True)
    took_s = time.monotonic() - begin
    states = {each["name"]: each for each in json.loads(process.stdout)["findings"]}
    assert process.returncode == 0, process.stdout
    assert took_s < 60
    names = ("versions", "processors", "memory", "ports", "disk", "torch", "GPUs", "two processes", "two ranks")
    assert states.keys() >= {*names, "clocks", "killed rank", "gradient", "restart", "exit code", "wall clock"}
    assert {states[name]["state"] for name in ("killed rank", "gradient", "restart", "exit code")} == {"ok"}
    assert not list(tmp_path.iterdir())
