"""Identity of processes by machine, number and start, and whether one lives: read from /proc, without messages.

A number alone does not identify a process, as the system gives it to another one later. With the time of its start it
does. Elsewhere than on Linux the number alone is compared.
"""

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Literal

SUSPENDED = ("T", "t")  # by a signal, by a debugger
DEAD = ("gone", "Z", "X")
PDEATHSIG = 1  # prctl's number: which signal to get when the parent dies
FIRST_NAMESPACE = "pid:[4026531836]"  # of process numbers outside containers


@dataclass(frozen=True)
class Host:
    """A machine since it was started, and the namespace that its process numbers are of."""

    node: str
    machine: str | None  # stays the same when it starts again
    boot: str | None
    pid_namespace: str | None

    def restarted(self, now: "Host") -> bool:
        """Return whether ``now`` is this machine after another start.

        It is False for containers: those of one image share its machine id, on whichever machine they start.
        """
        same = (self.node, self.machine) == (now.node, now.machine) and bool(self.machine)
        first = self.pid_namespace == now.pid_namespace == FIRST_NAMESPACE
        return same and first and bool(self.boot and now.boot) and self.boot != now.boot

    @classmethod
    def here(cls) -> "Host":
        """Return this process's machine."""
        namespace = Path("/proc/self/ns/pid")
        return cls(
            node=os.uname().nodename,
            machine=_text("/etc/machine-id"),
            boot=_text("/proc/sys/kernel/random/boot_id"),
            pid_namespace=os.readlink(namespace) if namespace.is_symlink() else None,
        )


@dataclass(frozen=True)
class Process:
    """One process, distinguished from those that get its number later."""

    pid: int
    start_ticks: int | None  # since the machine was started; None where /proc does not show it

    @classmethod
    def of(cls, pid: int) -> "Process":
        """Return the process that has this number now."""
        stat = _stat(pid)
        return cls(pid, None if stat is None else int(stat[19]))

    @property
    def state(self) -> str:
        """The kernel's letter (R running, S sleeping, T stopped, Z dead but not reaped), "gone" or "?".

        "?": some process has this number and /proc does not show which: another user's under hidepid, or no /proc.
        """
        stat = _stat(self.pid)
        if stat is not None:
            return stat[0] if int(stat[19]) == self.start_ticks else "gone"
        unknown = "R" if self.start_ticks is None and sys.platform != "linux" else "?"
        return unknown if _exists(self.pid) else "gone"

    @property
    def is_gone(self) -> bool:
        """Whether it has ended, reaped or not."""
        return self.state in DEAD


@dataclass(frozen=True)
class Place:
    """A process and its machine, by which any other process, now or later, can judge whether it lives."""

    host: Host
    process: Process

    @classmethod
    def here(cls) -> "Place":
        """Return this process's place."""
        return cls(Host.here(), Process.of(os.getpid()))

    def judge(self) -> Literal["lives", "gone", "unknown"]:
        """Return whether it lives, as far as this process can see."""
        here = Host.here()
        if here != self.host:
            return "gone" if self.host.restarted(here) else "unknown"
        state = self.process.state
        if state == "?" and self.process != Process.of(os.getpid()):
            return "unknown"
        return "gone" if state in DEAD else "lives"


def children(parent: int) -> Iterator[int]:
    """Yield the process numbers of a parent's children, also of those that have ended and were not reaped."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            stat = _stat(int(entry.name))
            if stat is not None and int(stat[1]) == parent:
                yield int(entry.name)


def ends_with_its_parent() -> Callable[[], None] | None:
    """Return a ``preexec_fn`` of a process that is to get SIGTERM when this one dies; None but on Linux.

    The thread that starts the process must live as long as this process does.
    """
    if sys.platform != "linux":
        return None
    parent, prctl = os.getpid(), ctypes.CDLL(None).prctl  # loaded here, as little may be done after a fork

    def bind() -> None:
        prctl(PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before
            os._exit(1)

    return bind


def end_with_parent() -> None:
    """Have this process killed when the one that started it dies; does nothing but on Linux."""
    # there is no prctl elsewhere, and those who start a process end it by themselves
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGKILL)


def user_of(pid: int) -> int | None:
    """Return the number of the user that a process runs as; None where it cannot be seen."""
    lines = (_text(f"/proc/{pid}/status") or "").splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("Uid:")), None)


def has_loaded(pid: int, library: str) -> bool | None:
    """Return whether a process has mapped a file of this name; None where it cannot be seen."""
    maps = _text(f"/proc/{pid}/maps")
    return None if maps is None else library in maps


def environ_of(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with; empty where it is gone, or another user's."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = (word.decode(errors="replace").partition("=") for word in words)
    return {name: value for name, _, value in pairs}


def host_id() -> int:
    """Return 64 bits that differ between machines, and between process namespaces on one machine."""
    here = Host.here()
    facts = f"{here.node}\n{here.boot}\n{here.pid_namespace}"
    return int.from_bytes(blake2b(facts.encode(), digest_size=8).digest(), "little", signed=True)


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat behind the name: state, parent, ..., the 20th the start in ticks."""
    text = _text(f"/proc/{pid}/stat")
    return None if text is None else text.rpartition(")")[2].split()


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)  # another user's
    return True
