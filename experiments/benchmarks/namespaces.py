"""Two network namespaces of this machine as two hosts, and the link between them, at a rate that the kernel keeps.

A process holds each namespace. When it ends, however this process does, the kernel takes away the namespace and the
link. The rate is kept by a token bucket (``tc``'s tbf) at either end. After a pause it is full, and what it holds
crosses at once, so it is small.
"""

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ddpsched.decode import shown
from ddpsched.errors import ConfigError, RunError
from ddpsched.processes import ends_with_its_parent

TOOLS = {"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2", "tc": "iproute2"}  # and their packages
LINK = "ddpsched0"  # the name of either end, each in its namespace
NET = "10.213.77"  # of addresses that exist in the two namespaces alone
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
UNSHAPED = "unshaped"
BUCKET = 16_384  # bytes that cross at once after a pause, at any rate
PACKET = 16_000  # bytes that are sent as one: with its headers it fits the bucket, so that tbf need not cut it up
TRIED = "1gbit"


@dataclass(frozen=True)
class Hosts:
    """The two hosts, each named by the process that holds its namespace."""

    holders: tuple[int, int]

    def enter(self, host: int) -> list[str]:
        """Return the words before a command that runs on a host."""
        return ["nsenter", f"--net=/proc/{self.holders[host]}/ns/net"]

    def address(self, host: int) -> str:
        """Return a host's address on the link."""
        return f"{NET}.{host + 1}"


def bits_per_s(rate: str) -> float | None:
    """Return a rate such as 100mbit as a number; None for ``unshaped``. Raises ConfigError.

    >>> bits_per_s("100mbit")
    100000000.0
    """
    if rate == UNSHAPED:
        return None
    found = re.fullmatch(r"([1-9][0-9]{0,5})(kbit|mbit|gbit)", rate)
    if found is None:
        raise ConfigError(
            f"rate {shown(rate)}: give a whole number and kbit, mbit or gbit, as in 100mbit; or {UNSHAPED}"
        )
    return int(found[1]) * UNITS[found[2]]


def missing() -> str | None:
    """Return why there can be no namespaces here, and what to do; None where there can."""
    if sys.platform != "linux":
        return f"network namespaces are Linux's, this is {sys.platform}; run it on Linux"
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        packages = " ".join(sorted({TOOLS[tool] for tool in absent}))
        return f"{', '.join(absent)} not found on PATH; install {packages}"
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        why = tried.stderr.strip() or f"exit code {tried.returncode}"
        return f"this process may not make a network namespace ({why}); run it as root, in a container with SYS_ADMIN"
    try:
        with _linked(TRIED):
            return None
    except (RunError, OSError) as error:  # a kernel may have namespaces, and neither veth links nor tbf
        return str(error)


@contextmanager
def two_hosts(rate: str) -> Iterator[Hosts]:
    """Yield two hosts with a link at ``rate`` between them. Raises ConfigError, or RunError with what the kernel says.

    >>> with two_hosts("100mbit") as hosts:  # doctest: +SKIP
    ...     subprocess.run([*hosts.enter(0), "ping", "-c1", hosts.address(1)])
    """
    bits_per_s(rate)
    if (reason := missing()) is not None:
        raise ConfigError(f"two hosts: {reason}")
    with _linked(rate) as hosts:
        yield hosts


@contextmanager
def _linked(rate: str) -> Iterator[Hosts]:
    with ExitStack() as stack:
        first, second = (stack.enter_context(_namespace()) for _ in range(2))
        hosts = Hosts((first, second))
        _do(
            ["ip", "link", "add", LINK, "netns", str(first), "type", "veth", "peer", "name", LINK, "netns", str(second)]
        )
        for host in range(2):
            here = hosts.enter(host)
            _do([*here, "ip", "address", "add", f"{hosts.address(host)}/24", "dev", LINK])
            _do([*here, "ip", "link", "set", "lo", "up"])
            # unshaped links too, so that links differ in their rate alone
            _do([*here, "ip", "link", "set", LINK, "gso_max_size", str(PACKET), "up"])
            if rate != UNSHAPED:
                shape = ["rate", rate, "burst", str(BUCKET), "latency", "100ms"]
                _do([*here, "tc", "qdisc", "add", "dev", LINK, "root", "tbf", *shape])
        yield hosts


@contextmanager
def _namespace() -> Iterator[int]:
    """Yield the number of a process that holds a network namespace of its own."""
    holder = subprocess.Popen(
        ["unshare", "--net", "sleep", "infinity"], stdin=subprocess.DEVNULL, preexec_fn=ends_with_its_parent()
    )
    try:
        mine, deadline = Path("/proc/self/ns/net").readlink(), time.monotonic() + 10
        while Path(f"/proc/{holder.pid}/ns/net").readlink() == mine:
            if holder.poll() is not None or time.monotonic() > deadline:
                raise RunError(f"unshare --net made no namespace in 10 s (exit code {holder.poll()}); try it")
            time.sleep(0.01)
        yield holder.pid
    finally:
        holder.kill()
        holder.wait()


def _do(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip() or f"exit code {done.returncode}"
        raise RunError(f"{' '.join(command)}: {said}; use a machine whose kernel has veth links and tbf")
