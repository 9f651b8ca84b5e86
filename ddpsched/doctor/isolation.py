"""Checks in a process of their own: one that raises, dies or hangs fails, and the others are made all the same."""

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from ddpsched.doctor.finding import Finding, Setting, one_line
from ddpsched.processes import children, end_with_parent

LOG = "checks.log"  # in the scratch folder: all that checks print
LAST_LINES = 2  # of it, in a finding
END_S = 0.5  # for a process that has made all checks to end


@dataclass(frozen=True)
class Probe:
    """A check to be made.

    ``name``: of its finding where it gives none. ``measure``: a function of a module, which returns its findings.
    ``limit_s``: its time limit in seconds. ``remedy``: what to do where it raises, dies or hangs.
    """

    name: str
    measure: Callable[[Setting], Sequence[Finding]]
    limit_s: float
    remedy: str

    def fails(self, why: str) -> list[Finding]:
        """Return the finding of a check that could not be made."""
        return [Finding(self.name, "fail", one_line(why, 480), self.remedy)]


def examine(probes: Sequence[Probe], setting: Setting, deadline: float) -> Iterator[Sequence[Finding]]:
    """Make the checks in turn; yield the findings of each as soon as it is made.

    They share a process, which is replaced after a check that died or was ended. ``deadline``: of all of them, by
    ``time.monotonic``; checks that it leaves no time for fail.
    """
    left = list(probes)
    while left:
        worker = _Worker(left, setting)
        try:
            while left:
                findings, alive = worker.next(left[0], deadline)
                left.pop(0)
                yield findings
                if not alive:
                    break
        finally:
            worker.end()


class _Worker:
    """The process in which checks are made."""

    def __init__(self, probes: Sequence[Probe], setting: Setting) -> None:
        self._log = setting.scratch / LOG
        context = multiprocessing.get_context("spawn")  # a fork of this process might hold locks of its threads
        self._pipe, send = context.Pipe(duplex=False)
        self._process: BaseProcess = context.Process(target=_make, args=(list(probes), setting, send))
        self._process.start()
        send.close()

    def next(self, probe: Probe, deadline: float) -> tuple[Sequence[Finding], bool]:
        """Return the findings of the next check, and whether this process can make another one."""
        limit_s = min(probe.limit_s, deadline - time.monotonic())
        if limit_s <= 0:
            return probe.fails("not made: the time of all checks was over"), True
        try:
            if self._pipe.poll(limit_s):
                return self._pipe.recv(), True
        except (EOFError, OSError):
            self._process.join(5)
            return probe.fails(f"its process died ({ended(self._process.exitcode)}){self._printed()}"), False
        return probe.fails(f"gave no result within {limit_s:.0f} s, and was ended{self._printed()}"), False

    def end(self) -> None:
        """End the process and all that it has started, unless it ends by itself within ``END_S``."""
        self._process.join(END_S)
        if self._process.is_alive() and self._process.pid is not None:
            end_tree(self._process.pid)
        self._process.join(5)
        self._pipe.close()

    def _printed(self) -> str:
        with contextlib.suppress(OSError):
            lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-LAST_LINES:]
            return f"; printed last: {' | '.join(lines)}" if lines else ""
        return ""


def end_tree(pid: int) -> None:
    """Kill a process and all its descendants, also those in sessions of their own, as torchrun's ranks are."""
    tree = [pid]
    for each in tree:  # grows as it is read
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGSTOP)  # so that it starts no others meanwhile
        if sys.platform == "linux":
            tree += children(each)
    for each in reversed(tree):
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


def ended(code: int | None) -> str:
    """Return how a process ended.

    >>> ended(-9), ended(3)
    ('killed by SIGKILL', 'exit code 3')
    """
    return f"killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"


def _make(probes: Sequence[Probe], setting: Setting, pipe: Connection) -> None:
    """Make checks in turn, and send the findings of each. Runs in the process of their own."""
    end_with_parent()
    _print_to(setting.scratch / LOG)
    os.environ["DDPSCHED_CACHE"] = str(setting.scratch / "cache")  # what checks tokenise is not kept
    for probe in probes:
        try:
            findings = probe.measure(setting)
        except Exception as error:
            findings = probe.fails(f"raised {type(error).__name__}: {error}")
        pipe.send(findings)


def _print_to(log: Path) -> None:
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    for descriptor in (1, 2):
        os.dup2(target, descriptor)
    os.close(target)
