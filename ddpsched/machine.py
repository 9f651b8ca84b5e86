"""Processors and memory that this process may use: those of the machine, or less within a container's limits."""

import os
from contextlib import suppress
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
UNLIMITED = 2**60  # of bytes; cgroup v1 writes a number about as large where there is no limit


def num_processors() -> int:
    """Return how many processors the scheduler may run this process on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor_limit(folder: Path = CGROUP) -> float | None:
    """Return how many processors' time a container may use; None without a limit."""
    with suppress(OSError, ValueError):
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    with suppress(OSError, ValueError):  # cgroup v1
        v1_quota, v1_period = (int((folder / "cpu" / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        return None if v1_quota < 0 else v1_quota / v1_period
    return None


def free_memory() -> int | None:
    """Return the bytes that are free on this machine and within its limit; None where unknown."""
    return min((value for value in (_available(), memory_below_limit()) if value is not None), default=None)


def memory_below_limit(folder: Path = CGROUP) -> int | None:
    """Return the bytes that are left below a container's limit, the page cache counted as free; None without one."""
    for below in (_v2, _v1):
        with suppress(OSError, StopIteration, ValueError):
            return below(folder)
    return None


def _available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)


def _v2(folder: Path) -> int | None:
    limit, used = ((folder / name).read_text().strip() for name in ("memory.max", "memory.current"))
    return None if limit == "max" else int(limit) - int(used) + _stat(folder / "memory.stat", "file")


def _v1(folder: Path) -> int | None:
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
    limit, used = (int((folder / "memory" / name).read_text()) for name in names)
    return None if limit >= UNLIMITED else limit - used + _stat(folder / "memory" / "memory.stat", "total_cache")


def _stat(path: Path, name: str) -> int:
    """Return one line's number. Raises StopIteration where the file has no such line."""
    return next(int(line.split()[1]) for line in path.read_text().splitlines() if line.split()[0] == name)
