"""Planning time of this checkout against another one, per sample and policy.

    git worktree add ../before COMMIT
    python -m experiments.benchmarks.versions ../before [--lengths FILE] [--world-size 4] [--global-batch 32]

Each measurement is one process of `ddpsched plan --json`, without garbage collection. A round is other, this, this,
other, so that a drift of the machine affects both alike; its ratio is this over other, and its A/A this over this. The
table has the median of the rounds and their range. Lengths are like SST-2's, or of any file that `ddpsched plan` reads.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from rich import box
from rich.table import Table

from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.terminal import plain_console

HERE = Path(__file__).parents[2]
SAMPLES = 20_000
PLAN = "import gc, runpy; gc.disable(); runpy.run_module('ddpsched', run_name='__main__')"


def planning_us(checkout: Path, words: list[str]) -> dict[str, float]:
    """Return the microseconds a sample of each arm, as the code of ``checkout`` plans it."""
    environ = {**os.environ, "PYTHONPATH": str(checkout)}
    command = [sys.executable, "-c", PLAN, "plan", *words, "--json"]
    output = subprocess.run(command, cwd=checkout, env=environ, check=True, capture_output=True, text=True).stdout
    return {row["arm"]: row["planning_us"] for row in json.loads(output)["rows"] if row["planning_us"]}


def spread(values: list[float]) -> str:
    """Return the median of rounds and their range."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    """Measure in rounds, and print a row for each arm that both have."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument("--lengths", type=Path)
    parser.add_argument("--world-size", type=int, default=4)
    parser.add_argument("--global-batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    other = options.other.resolve()
    if not (other / "ddpsched" / "__init__.py").is_file():
        parser.error(f"{other} is no checkout of ddpsched: it has no ddpsched/__init__.py; see git worktree add")
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: must be 1 or more")
    with tempfile.TemporaryDirectory() as folder:
        lengths = options.lengths
        if lengths is None:
            lengths = Path(folder, "lengths.npy")
            np.save(lengths, sst2_lengths(SAMPLES, np.random.default_rng(0)))
        words = [str(lengths.resolve())]
        words += ["--world-size", str(options.world_size), "--global-batch", str(options.global_batch)]
        rounds = [
            [planning_us(checkout, words) for checkout in (other, HERE, HERE, other)] for _ in range(options.rounds)
        ]
    table = Table("arm", "other, us/sample", "this, us/sample", "this / other", "A/A", box=box.SIMPLE_HEAD)
    for arm in rounds[0][1]:
        if arm not in rounds[0][0]:
            continue
        before, first, second, after = (np.array([each[k][arm] for each in rounds]) for k in range(4))
        table.add_row(
            arm,
            f"{np.median([before, after]):.2f}",
            f"{np.median([first, second]):.2f}",
            spread(((first + second) / (before + after)).tolist()),
            spread((second / first).tolist()),
        )
    plain_console().print(table)


if __name__ == "__main__":
    main()
