"""Processes by machine, number and start: whether one lives, read from /proc without a message between processes.

A number alone does not name a process: the system gives it to another one later. With the time of its start it does.
Elsewhere than on Linux the number has to do.
"""

import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

SUSPENDED = ("T", "t")  # by a signal, by a debugger
DEAD = ("gone", "Z", "X")
FIRST_NAMESPACE = "pid:[4026531836]"  # of process numbers: the machine's own, in no container


@dataclass(frozen=True)
class Host:
    """A machine since it was started, and which of its process numbers are meant."""

    node: str
    machine: str | None  # stays the same when it starts again
    boot: str | None
    pid_namespace: str | None

    def restarted(self, now: "Host") -> bool:
        """Whether ``now`` is this machine after another start. Containers, which start from one image on many machines
        with its machine id, are never said to be one.
        """
        same = (self.node, self.machine) == (now.node, now.machine) and bool(self.machine)
        first = self.pid_namespace == now.pid_namespace == FIRST_NAMESPACE
        return same and first and bool(self.boot and now.boot) and self.boot != now.boot

    @classmethod
    def here(cls) -> "Host":
        namespace = Path("/proc/self/ns/pid")
        return cls(
            node=os.uname().nodename,
            machine=_text("/etc/machine-id"),
            boot=_text("/proc/sys/kernel/random/boot_id"),
            pid_namespace=os.readlink(namespace) if namespace.is_symlink() else None,
        )


@dataclass(frozen=True)
class Process:
    """One process for ever, whoever gets its number later."""

    pid: int
    start_ticks: int | None  # since the machine was started; None where the system does not say

    @classmethod
    def of(cls, pid: int) -> "Process":
        stat = _stat(pid)
        return cls(pid, None if stat is None else int(stat[19]))

    @property
    def state(self) -> str:
        """The kernel's letter (R running, S sleeping, T stopped, Z dead but not reaped), "gone", or "?" where some
        process has this number and /proc does not show which: another user's under hidepid, or no /proc at all.
        """
        if self.start_ticks is None and platform.system() != "Linux":
            return "R" if _exists(self.pid) else "gone"
        stat = _stat(self.pid)
        if stat is None:
            return "?" if _exists(self.pid) else "gone"
        return stat[0] if int(stat[19]) == self.start_ticks else "gone"

    @property
    def is_gone(self) -> bool:
        return self.state in DEAD


@dataclass(frozen=True)
class Place:
    """A process and where it runs: what another one, now or later, here or elsewhere, can judge it by."""

    host: Host
    process: Process

    @classmethod
    def here(cls) -> "Place":
        return cls(Host.here(), Process.of(os.getpid()))

    def judge(self) -> Literal["lives", "gone", "unknown"]:
        """Whether it lives, as far as that can be seen from here."""
        here = Host.here()
        if here == self.host:
            state = self.process.state
            if state == "?" and self.process != Process.of(os.getpid()):
                return "unknown"
            return "gone" if state in DEAD else "lives"
        return "gone" if self.host.restarted(here) else "unknown"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Place":
        return cls(Host(**value["host"]), Process(**value["process"]))


def process_state(pid: int) -> str:
    """The kernel's letter for whatever process has this number now, "gone", or "?" where /proc does not show it."""
    stat = _stat(pid)
    if stat is None:
        return "?" if _exists(pid) else "gone"
    return stat[0]


def children(parent: int) -> Iterator[int]:
    """Process numbers of a parent's children, those among them that have ended and were not reaped too."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            stat = _stat(int(entry.name))
            if stat is not None and int(stat[1]) == parent:
                yield int(entry.name)


def environ_of(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with; empty where it is gone, or another user's."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = (word.decode(errors="replace").partition("=") for word in words)
    return {name: value for name, _, value in pairs}


def host_id() -> int:
    """64 bits that tell machines, and process namespaces on one machine, apart."""
    here = Host.here()
    facts = "\n".join(str(fact) for fact in (here.node, here.boot, here.pid_namespace))
    return int.from_bytes(blake2b(facts.encode(), digest_size=8).digest(), "little", signed=True)


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat behind the name: state, parent, ..., the 20th the start in ticks."""
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
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True
