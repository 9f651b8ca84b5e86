"""Counts of how small distributed runs end. ``python -m experiments.stress --runs 200 --load 2 [--plant "1 5 PLACE"]``.

Runs of two real ranks under torchrun follow one another, beside ``--load`` processes that only compute. Printed is how
many had each ending: state and reason of status.json, torchrun's exit code, and the number of processes that are left.
``--plant`` is a fault as in ``experiments.planted``.
"""

import contextlib
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from ddpsched.run_folder import read_status

CONFIG = """
outputs = "{outputs}"
steps = {steps}
global_batch = 8
world_size = 2
[executor]
kind = "distributed"
[data]
size = 50
"""
LIMIT_S = 180.0

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def ending(config: Path, name: str, plant: str) -> str:
    """Run one run of the config; return how it ended."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "experiments.planted"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "DDPSCHED_PLANT": plant}
    with (config.parent / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *launcher, str(config), f"name={name}"], stdout=log, stderr=log, env=environ
        )
        try:
            code: int | str = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = f"none within {LIMIT_S:.0f} s"
    status = read_status(config.parent / "runs" / name)
    reason = "" if status.get("reason") is None else f" ({status['reason']})"
    left = sum(f"name={name}" in words and str(config) in words for words in _command_lines())
    return re.sub(r" \(process \d+\)", "", f"{status['state']}{reason}, exit code {code}, {left} processes left")


def _command_lines() -> Iterator[list[str]]:
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield file.read_text(errors="replace").split("\0")


def _compute() -> None:
    while True:
        sum(range(10_000))


@app.command()
def main(
    runs: Annotated[int, typer.Option(min=1, help="number of runs")] = 20,
    load: Annotated[int, typer.Option(min=0, help="processes that compute beside the runs")] = 0,
    plant: Annotated[str, typer.Option(help="a fault, as in experiments.planted")] = "",
    steps: Annotated[int, typer.Option(min=1, help="steps of each run")] = 3,
) -> None:
    """Run distributed runs, and count how they end."""
    beside = [multiprocessing.Process(target=_compute, daemon=True) for _ in range(load)]
    for process in beside:
        process.start()
    endings: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="ddpsched-stress-") as folder:
        config = Path(folder, "stress.toml")
        config.write_text(CONFIG.format(outputs=folder, steps=steps), encoding="utf-8")
        for number in range(runs):
            begin = time.monotonic()
            result = ending(config, f"run-{number}", plant)
            endings[result] += 1
            print(f"{number + 1} of {runs}: {result}, {time.monotonic() - begin:.1f} s", flush=True)
    for process in beside:
        process.kill()
    for result, count in endings.most_common():
        print(f"{count:5d} {result}")


if __name__ == "__main__":
    app()
