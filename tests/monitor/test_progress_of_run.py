"""A run's progress: a bar on a terminal, sparse lines elsewhere."""

import io
import logging
import re
import sys

import pytest
from made_runs import record

from ddpsched.monitor import progress
from ddpsched.monitor.progress import ProgressOfRun


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which only the test lets pass."""
    now = [0.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    return now


def through(run: ProgressOfRun, seconds: list[float], first: int, end: int, step_s: float) -> None:
    for done in range(first + 1, end + 1):
        seconds[0] += step_s
        run.add(done, [record(done - 1, loss=0.25)])
    run.close()


def test_sparse_lines_where_there_is_no_terminal(
    seconds: list[float], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with caplog.at_level(logging.INFO, "ddpsched"):
        through(ProgressOfRun(300, 100, has_bar=True), seconds, 100, 300, step_s=0.16)
    assert caplog.messages == [
        "step 163 of about 300, loss 0.2500, 6.2 steps/s, 0:00:22 left",
        "step 226 of about 300, loss 0.2500, 6.2 steps/s, 0:00:12 left",
        "step 289 of about 300, loss 0.2500, 6.2 steps/s, 0:00:02 left",
        "step 300 of about 300, loss 0.2500, 6.2 steps/s, in 0:00:32",
    ]
    assert not sys.stderr.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("columns", [60, 100])
def test_a_bar_on_a_terminal(
    seconds: list[float], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, Terminal())
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    drawn = sys.stderr
    with caplog.at_level(logging.INFO, "ddpsched"):
        through(ProgressOfRun(40, 0, has_bar=True), seconds, 0, 40, step_s=0.3)
    assert all(record.in_bar for record in caplog.records)  # type: ignore[attr-defined]
    text = drawn.getvalue()  # type: ignore[attr-defined]
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text))
    assert any(re.match(r"step 20/40 .*loss 0.2500, 3.3 steps/s, 0:00:06 left", line) for line in lines)
    assert max(map(len, lines)) <= columns
    assert "\x1b[?25l" not in text, "the cursor is hidden, which a killed process leaves so"
    assert len(lines) < 30  # not one for each step


@pytest.mark.parametrize("why", ["stdout", "dumb", "not asked for"])
def test_no_bar(seconds: list[float], monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(sys, "stdout", io.StringIO() if why == "stdout" else Terminal())
    monkeypatch.setenv("TERM", "dumb" if why == "dumb" else "xterm")
    drawn = sys.stderr
    through(ProgressOfRun(4, 0, has_bar=why != "not asked for"), seconds, 0, 4, step_s=1.0)
    assert "/4" not in drawn.getvalue()  # type: ignore[attr-defined]
