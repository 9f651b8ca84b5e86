"""Whether a long run takes ever more memory.

    python -m experiments.reliability.soak [--steps 50000] [--ranks 1] [--warm-up N] [--freeze]

One process trains a tiny model as two virtual ranks, with a checkpoint every 1,000 steps; with ``--ranks 2`` two ranks
do it under torchrun. Every so many steps the run's processes are looked at from outside: resident memory, threads and
open files. The slope of memory is the median over all pairs of looks (Theil and Sen) after ``--warm-up`` steps, a tenth
where it is not given; it must be below 1 KiB a step in each process, and the others must not grow.

Two caches of torch have bounds that take thousands of steps to reach, so they are off here: oneDNN's compiled kernels,
up to 1,024, one for each operation and shape, and the flight recorder's last 2,000 collectives. What is left grows as
the allocator meets larger and larger steps, hence the warm-up; the finding holds the slopes of both halves after it.
"""

import itertools
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from ddpsched.recovery.ledger import LEDGER
from experiments.reliability.findings import Finding, Freeze, report
from experiments.reliability.real_runs import TRAIN, ranks_of, start

LIMIT, LOOKS = 1024.0, 200  # bytes a step; looks in all
SILENT_S = 120.0  # without a step
ENV = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "0", "TORCH_FR_BUFFER_SIZE": "0"}
PAGE = os.sysconf("SC_PAGE_SIZE")
CONFIG = """
outputs = "{outputs}"
steps = {steps}
global_batch = 8
world_size = 2
executor = {{ kind = "{kind}", timeout_s = 60.0 }}
data = {{ size = 400, held_out = 0.02 }}
train = {{ checkpoint_every = {every}, save_model = false }}
"""
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Look:
    """A process at one moment: after how many steps, its resident bytes, its threads and its open files."""

    step: int
    resident: int
    threads: int
    files: int

    @classmethod
    def at(cls, pid: int, step: int) -> "Look":
        """Return how a process is now. Raises OSError where it has ended."""
        folder = Path("/proc") / str(pid)
        resident = int((folder / "statm").read_text().split()[1]) * PAGE
        return cls(step, resident, len(list((folder / "task").iterdir())), len(list((folder / "fd").iterdir())))


def slope(looks: list[Look]) -> float:
    """Return the bytes that resident memory grows by in a step: the median over all pairs of looks."""
    rates = [(b.resident - a.resident) / (b.step - a.step) for a, b in itertools.combinations(looks, 2)]
    return median(rates)


def grown(looks: list[Look]) -> list[str]:
    """Return which of threads and open files were more in the second half than ever in the first.

    A checkpoint that is being written has files open for a moment.
    """
    first, second = looks[: len(looks) // 2], looks[len(looks) // 2 :]
    return [
        name
        for name in ("threads", "files")
        if min(getattr(b, name) for b in second) > max(getattr(a, name) for a in first)
    ]


class _Ledger:
    """The number of steps done so far, read as the ledger grows."""

    def __init__(self, path: Path) -> None:
        self._path, self._end, self.steps = path, 0, 0

    def read(self) -> int:
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._end)
                data = file.read()
            self._end += len(data)
            self.steps += data.count(b"\n")
        return self.steps


def soak(folder: Path, steps: int, ranks: int, warm_up: int) -> dict[int, list[Look]]:
    """Run to the end, and return the looks at each process after the warm-up. Raises RuntimeError where it fails."""
    config, name = folder / "config.toml", "soak"
    kind, checkpoints = "virtual" if ranks == 1 else "distributed", min(1000, max(1, steps // 5))
    config.write_text(CONFIG.format(outputs=folder, steps=steps, kind=kind, every=checkpoints), encoding="utf-8")
    process = _one(config, name) if ranks == 1 else start(config, name, ranks, env=ENV)
    ledger, looks, every = _Ledger(folder / "runs" / name / LEDGER), dict[int, list[Look]](), max(1, steps // LOOKS)
    due, changed = warm_up, time.monotonic()
    while process.poll() is None:
        before, step = ledger.steps, ledger.read()
        changed = time.monotonic() if step > before else changed
        if time.monotonic() - changed > SILENT_S:
            process.kill()
            raise RuntimeError(f"no step within {SILENT_S:.0f} s after step {step}; see {name}.log")
        if step >= due and step < steps:
            due = step + every
            for pid in [process.pid] if ranks == 1 else ranks_of(process.pid).values():
                looks.setdefault(pid, []).append(Look.at(pid, step))
        time.sleep(0.02)
    if process.returncode:
        raise RuntimeError((folder / f"{name}.log").read_text(encoding="utf-8"))
    return looks


def _one(config: Path, name: str) -> "subprocess.Popen[Any]":
    with (config.parent / f"{name}.log").open("ab") as log:
        command = [sys.executable, "-m", TRAIN, str(config), f"name={name}"]
        return subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1", **ENV})


@app.command()
def main(
    steps: Annotated[int, typer.Option(min=100, help="of the run")] = 50_000,
    ranks: Annotated[int, typer.Option(min=1, max=2, help="processes of the run")] = 1,
    warm_up: Annotated[int | None, typer.Option(min=1, help="steps that do not count; a tenth")] = None,
    freeze: Freeze = False,
) -> None:
    """Run for long, and look at memory, threads and open files."""
    before = steps // 10 if warm_up is None else warm_up
    if before > steps - 50:
        raise typer.BadParameter(f"{before} of {steps} steps leave fewer than 50 that count", param_hint="--warm-up")
    with tempfile.TemporaryDirectory(prefix="ddpsched-soak-") as folder:
        looks = [each for each in soak(Path(folder), steps, ranks, before).values() if len(each) > 1]
    slopes = [slope(each) for each in looks]
    halves = [
        [slope(part) for part in (each[: len(each) // 2], each[len(each) // 2 :]) if len(part) > 1] for each in looks
    ]
    more = sorted({name for each in looks for name in grown(each)})
    figures = ", ".join(f"{each:+,.0f}" for each in slopes)
    others = f"{' and '.join(more)} grew" if more else "the others constant"
    finding = Finding(
        f"soak_{'1_process' if ranks == 1 else f'{ranks}_ranks'}",
        f"Memory of a long run, {'one process' if ranks == 1 else f'{ranks} ranks'}",
        "below 1 KiB a step; threads and open files constant",
        f"{figures} bytes a step over {steps - before:,} steps after {before:,}; {others}",
        len(slopes) == ranks and all(each < LIMIT for each in slopes) and not more,
        f"python -m experiments.reliability.soak --steps {steps} --ranks {ranks} --warm-up {before}",
        {
            "slopes": slopes,
            "slopes of halves": halves,
            "MiB": [[each[0].resident / 2**20, each[-1].resident / 2**20] for each in looks],
        },
    )
    raise typer.Exit(report(finding, freeze))


if __name__ == "__main__":
    app()
