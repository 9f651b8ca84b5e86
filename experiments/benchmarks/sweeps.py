"""Measure the overhead of a sweep: seconds a run, beyond the run's own process, from its start to its end.

    python -m experiments.benchmarks.sweeps [--runs 20]

The study has so many short simulated runs, each a launch. *here*: the sweep starts them one after another. *local*,
where submitit is installed: it submits each as a job to submitit's executor for one machine, which starts two processes
for it; the time from a job's submission until its task begins, and from the task's end until the sweep has noticed, is
in the overhead, and the imports of the two processes are taken off, as they are timed right after each sweep. A share
of either is the time of a busy machine: run it on a quiet one.
"""

import argparse
import importlib.util
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest import mock

from rich import box
from rich.table import Table

from ddpsched.terminal import plain_console
from experiments.slurm import Cluster
from experiments.slurm_task import FOLDER
from experiments.sweep import sweep

LIMIT_S = 1.0
STUDY = """
[base]
steps = 5
global_batch = 8
world_size = 2
executor = {{ kind = "simulated" }}
data = {{ size = 50 }}
[grid]
seed = {seeds}
"""
# of a job: its controller, then its task up to its function, whose own imports are within its time
IMPORTS = ("submitit.local._local", "numpy, submitit.core._submit")
MOMENT = re.compile(r"submitit INFO \((.*?)\) - (Loading pickle|Job completed)")  # in a job's log


class Timed(subprocess.Popen[bytes]):
    """A process whose seconds, until it has been waited for, are added up."""

    total_s = 0.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._begin = time.perf_counter()
        super().__init__(*arguments, **options)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, when it has ended."""
        code = super().wait(timeout)
        Timed.total_s += time.perf_counter() - self._begin
        return code


def here(study: Path, outputs: Path) -> tuple[float, float]:
    """Return the seconds of a sweep, and those of them in which a run's process was there."""
    Timed.total_s, begin = 0.0, time.perf_counter()
    with mock.patch("experiments.launching.subprocess.Popen", Timed):
        _sweep(study, outputs, None)
    return time.perf_counter() - begin, Timed.total_s


def local(study: Path, outputs: Path) -> tuple[float, float]:
    """Return the seconds of a sweep through submitit, and those of them in which a job's task ran."""
    begin = time.perf_counter()
    _sweep(study, outputs, Cluster("local"))
    took_s, tasks_s = time.perf_counter() - begin, 0.0
    for log in (outputs / study.stem / FOLDER).glob("*_log.*"):
        moments = [datetime.strptime(each, "%Y-%m-%d %H:%M:%S,%f") for each, _ in MOMENT.findall(log.read_text())]
        if moments:
            tasks_s += (moments[-1] - moments[0]).total_seconds()
    return took_s, tasks_s


def _sweep(study: Path, outputs: Path, cluster: Cluster | None) -> None:
    if sweep(str(study), [f"outputs={outputs}"], pair=False, cluster=cluster):
        raise RuntimeError("runs failed, so that their times say nothing")


def imports_s() -> float:
    """Return how long the processes of a job take that only import what it imports."""
    begin = time.perf_counter()
    for names in IMPORTS:
        subprocess.run([sys.executable, "-c", f"import {names}"], check=True)
    return time.perf_counter() - begin


def measure(runs: int) -> dict[str, tuple[float, float]]:
    """Return by place the overhead of a run, and the seconds of a run's process or job, imports taken off."""
    with tempfile.TemporaryDirectory() as temporary:
        study = Path(temporary) / "short.toml"
        study.write_text(STUDY.format(seeds=list(range(runs))), encoding="utf-8")
        whole, inside = here(study, Path(temporary) / "here")
        found = {"here": ((whole - inside) / runs, inside / runs)}
        if importlib.util.find_spec("submitit"):
            whole, inside = local(study, Path(temporary) / "local")
            off = sum(imports_s() for _ in range(3)) / 3
            # a task does what a sweep does here, which is within its time
            found["local"] = ((whole - inside) / runs - off + found["here"][0], inside / runs)
    return found


def report(found: dict[str, tuple[float, float]]) -> Table:
    """Return the overheads as a table."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("sweep", no_wrap=True)
    for head in ("a run by itself, s", "overhead of a run, s", f"at most {LIMIT_S:g} s"):
        table.add_column(head, justify="right")
    for place, (over_s, run_s) in found.items():
        table.add_row(f"--on {place}", f"{run_s:.2f}", f"{over_s:.3f}", "yes" if over_s <= LIMIT_S else "no")
    return table


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number, at least 1")
    return int(text)


def main(words: Sequence[str]) -> int:
    """Measure and print; return 1 where the overhead is larger than ``LIMIT_S``."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmarks.sweeps",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=_count, default=20)
    found = measure(parser.parse_args(words).runs)
    plain_console().print(report(found))
    return 0 if all(over_s <= LIMIT_S for over_s, _ in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
