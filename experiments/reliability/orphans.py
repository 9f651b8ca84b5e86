"""Whether a killed driver leaves processes. ``python -m experiments.reliability.orphans [--count 20] [--seed 0]``.

Runs of two real ranks are started by torchrun alone and by a sweep, in turn. The one who started them, torchrun or the
sweep, gets SIGKILL at a random moment of the start, of the steps, or of the end. 5 s later no process of the run may be
left: none whose command line names the run's folder. ``--freeze`` as everywhere.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from ddpsched.processes import Process
from ddpsched.recovery.ledger import LEDGER
from experiments.reliability.findings import Finding, Freeze, report
from experiments.reliability.real_runs import start, still_there, write_config

LIMIT_S, LEFT_S, STEPS = 120.0, 5.0, 60
STUDY = """
[base]
outputs = "{outputs}"
steps = {steps}
global_batch = 12
world_size = 2
executor = {{ kind = "distributed", timeout_s = 30.0 }}
data = {{ size = 100, held_out = 0.02 }}
[grid]
"policy.kind" = ["static"]
[compare]
how = "apart"
"""
PHASES = ("start", "steps", "end")
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def by_torchrun(folder: Path) -> "subprocess.Popen[Any]":
    """Start a run's launcher."""
    return start(write_config(folder, ranks=2, steps=STEPS), "run", 2)


def by_sweep(folder: Path) -> "subprocess.Popen[Any]":
    """Start a sweep, which starts the run's launcher."""
    study = folder / "study.toml"
    study.write_text(STUDY.format(outputs=folder, steps=STEPS), encoding="utf-8")
    with (folder / "sweep.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "experiments.sweep", str(study), "--no-pair"], stdout=log, stderr=log
        )


DRIVERS: dict[str, Callable[[Path], "subprocess.Popen[Any]"]] = {"torchrun": by_torchrun, "sweep": by_sweep}


def processes_of(folder: Path) -> list[Process]:
    """Return the processes whose command line names something in a folder."""
    mark, found = f"{folder}/".encode(), []
    for entry in os.scandir("/proc"):
        try:
            if entry.name.isdigit() and mark in Path(entry.path, "cmdline").read_bytes():
                found.append(Process.of(int(entry.name)))
        except OSError:  # it has ended meanwhile
            continue
    return found


def _steps_done(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.rglob(LEDGER))


def _await_phase(driver: "subprocess.Popen[Any]", folder: Path, phase: str, draw: random.Random) -> None:
    """Return at a random moment of this phase, or when the driver has ended."""
    due = {"start": 0, "steps": 1, "end": STEPS - 1}[phase]
    deadline = time.monotonic() + LIMIT_S
    while driver.poll() is None and _steps_done(folder) < due:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the run in {folder} made no {due} steps within {LIMIT_S:.0f} s")
        time.sleep(0.01)
    time.sleep(draw.uniform(0.0, {"start": 6.0, "steps": 0.5, "end": 0.5}[phase]))


def _logged(folder: Path) -> str:
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in folder.glob("*.log"))


def left_over(name: str, phase: str, folder: Path, draw: random.Random) -> int | None:
    """Return how many processes of a run are left after its driver was killed; None where it had ended before."""
    driver = DRIVERS[name](folder)
    try:
        _await_phase(driver, folder, phase, draw)
        if driver.poll() is not None:
            if driver.returncode:
                raise RuntimeError(f"{name} ended with exit code {driver.returncode}: {_logged(folder)}")
            return None
        seen = {process.pid: process for process in processes_of(folder)}
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        # what was being started at that moment is found only now
        seen |= {process.pid: process for process in processes_of(folder)}
        still_there(list(seen.values()), LEFT_S)
        left = [process for process in processes_of(folder) if not process.is_gone]
        for process in left:
            os.kill(process.pid, signal.SIGKILL)
        return len(left)
    finally:
        if driver.poll() is None:
            driver.kill()
            driver.wait()


@app.command()
def main(
    count: Annotated[int, typer.Option(min=1, help="kills in all")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="of the moments")] = 0,
    freeze: Freeze = False,
) -> None:
    """Kill drivers, and count what is left."""
    draw, kills, left = random.Random(seed), Counter[str](), Counter[str]()
    for number in range(2 * count):
        if kills.total() == count:
            break
        name, phase = list(DRIVERS)[number % 2], PHASES[number // 2 % 3]
        with tempfile.TemporaryDirectory(prefix="ddpsched-orphans-", ignore_cleanup_errors=True) as folder:
            found = left_over(name, phase, Path(folder), draw)
        label = f"{name}, {phase}"
        print(f"{label}: {'had ended' if found is None else f'{found} left'}", flush=True)
        if found is not None:
            kills[label] += 1
            left[label] += found
    finding = Finding(
        "orphans",
        "Processes left 5 s after SIGKILL of the driver",
        f"0 after {count} kills",
        f"{left.total()} after {kills.total()} kills of torchrun and of sweeps",
        kills.total() == count and not left.total(),
        f"python -m experiments.reliability.orphans --count {count} --seed {seed}",
        {"kills": dict(kills), "left": {label: number for label, number in left.items() if number}},
    )
    raise typer.Exit(report(finding, freeze))


if __name__ == "__main__":
    app()
