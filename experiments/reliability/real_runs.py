"""Real runs under torchrun: start them, find their ranks' processes, and wait for their end."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddpsched.processes import Process, children, environ_of

TRAIN = "experiments.train"
CONFIG = """
outputs = "{outputs}"
steps = {steps}
global_batch = 12
world_size = {ranks}
executor = {{ kind = "distributed", timeout_s = {timeout_s} }}
data = {{ size = 100, held_out = 0.02 }}
"""


def write_config(folder: Path, ranks: int, steps: int, timeout_s: float = 30.0) -> Path:
    """Write the config of a run of a tiny model on the embedded sentences; return its path."""
    path = folder / "config.toml"
    path.write_text(CONFIG.format(outputs=folder, ranks=ranks, steps=steps, timeout_s=timeout_s), encoding="utf-8")
    return path


def start(
    config: Path, name: str, ranks: int, *words: str, module: str = TRAIN, env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a run's ranks under torchrun; what they print is appended to ``NAME.log`` beside the config."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m", module]
    with (config.parent / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, *launcher, str(config), f"name={name}", f"world_size={ranks}", *words],
            stdout=log,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
        )


def ranks_of(launcher: int) -> dict[int, int]:
    """Return the process of each rank that a torchrun has started, by rank."""
    found = {}
    for pid in children(launcher):
        rank = environ_of(pid).get("RANK")
        if rank is not None:
            found[int(rank)] = pid
    return found


def still_there(processes: Sequence[Process], limit_s: float) -> list[Process]:
    """Return those that live on after ``limit_s`` seconds; return as soon as there are none."""
    deadline = time.monotonic() + limit_s
    while (left := [each for each in processes if not each.is_gone]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def ended(process: subprocess.Popen[Any], limit_s: float) -> int | None:
    """Return the exit code of a launcher; None, after it was killed, where it has not ended within ``limit_s``."""
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None
