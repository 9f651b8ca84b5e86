"""The environment of a run: versions, machine, commit. Written beside its records."""

import math
import os
import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

PACKAGES = ("ddpsched", "torch", "transformers", "tokenizers", "datasets", "numpy", "pulp")


def describe() -> dict[str, Any]:
    """Return the versions of Python and packages, the CPU, cores, memory, platform and the working tree's commit."""
    return {
        "versions": dict(versions()),
        "cpu": cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": _sysconf("SC_PAGE_SIZE", "SC_PHYS_PAGES"),
        "platform": platform.platform(),
        "commit": _commit(),
    }


@cache
def versions() -> dict[str, str | None]:
    """Return the versions of Python and of the packages that a run rests on."""
    return {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}


def _version(package: str) -> str | None:
    return next((each.version for each in metadata.distributions(name=package)), None)


@cache
def cpu() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def stolen_s() -> float | None:
    """Return the processor time stolen from this machine since it started, over all processors; None where unknown."""
    try:
        with open("/proc/stat", "rb", buffering=0) as file:
            words = file.read(256).split(b"\n")[0].split()
        return int(words[8]) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError):
        return None


def _sysconf(*names: str) -> int | None:
    """Return the product of these settings of the system; None where it has not all of them."""
    known = getattr(os, "sysconf_names", {})
    return math.prod(map(os.sysconf, names)) if known.keys() >= set(names) else None


def _commit() -> str | None:
    """Return the short hash of the checkout that the package lies in, marked + where it has changes."""

    def git(*words: str) -> str:
        return subprocess.check_output(["git", *words], cwd=Path(__file__).parent, text=True, stderr=DEVNULL).strip()

    try:
        return git("rev-parse", "--short", "HEAD") + "+" * bool(git("status", "--porcelain", "-uno"))
    except (OSError, subprocess.CalledProcessError):
        return None
