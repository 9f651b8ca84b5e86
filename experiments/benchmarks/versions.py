"""Planning time of this checkout against another one, per sample and policy.

    git worktree add ../before COMMIT
    python -m experiments.benchmarks.versions ../before [--lengths FILE] [--world-size 4] [--global-batch 32]

Four processes stay open, two of each checkout, and plan one epoch when they are asked, without garbage collection. A
round asks other, this, this, other about one policy, the two processes of a checkout in turn, so that a machine that
drifts or is shared meets both alike. ``this / other`` is the median over rounds of the ratio of their sums, and A/A
that of this over this, with the middle half of the rounds behind each: where the two overlap, nothing is shown. Lengths
are like SST-2's, or of any file that `ddpsched plan` reads.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich import box
from rich.table import Table

from ddpsched.compare.arms import Question, arms
from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.data.length_files import read_lengths
from ddpsched.terminal import plain_console

HERE = Path(__file__).parents[2]
SAMPLES = 48_000
# of both checkouts: only what both have
ANSWER = """
import gc, sys
import numpy as np
from ddpsched.compare import Question, compare
gc.disable()
question = Question(np.load(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
for line in sys.stdin:
    row = next(iter(compare(question, [line.strip()])))
    print(row.planning_us, flush=True)
    gc.collect()
"""


class Planner:
    """A process that plans an epoch with the code of a checkout, whenever it is asked."""

    def __init__(self, checkout: Path, words: list[str]) -> None:
        self._checkout = checkout
        environ = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", ANSWER, *words],
            cwd=checkout, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def us(self, policy: str) -> float:
        """Return the microseconds per sample of one epoch. Raises RuntimeError where the checkout cannot plan it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{policy}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self._checkout} cannot plan {policy!r}; its error is above")
        return float(answer)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def measure(policy: str, this: list[Planner], other: list[Planner], rounds: int) -> npt.NDArray[np.float64]:
    """Return microseconds per sample, (rounds, 4): of other, this, this and other again, after a warm-up."""
    times = []
    for number in range(rounds + 1):
        first, second = number % 2, 1 - number % 2
        turns = (other[first], this[first], this[second], other[second])
        times.append([planner.us(policy) for planner in turns])
    return np.array(times[1:])


def spread(values: npt.NDArray[np.float64]) -> str:
    """Return the median of rounds, and the range of their middle half."""
    low, median, high = np.percentile(values, [25, 50, 75])
    return f"{median:.2f} ({low:.2f} to {high:.2f})"


def main() -> None:
    """Measure in rounds, and print a row for each policy."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmarks.versions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("other", type=Path)
    parser.add_argument("--lengths", type=Path)
    parser.add_argument("--world-size", type=int, default=4)
    parser.add_argument("--global-batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    other = options.other.resolve()
    if not (other / "ddpsched" / "__init__.py").is_file():
        parser.error(f"{other} is not a checkout of ddpsched: it has no ddpsched/__init__.py")
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: must be at least 1")
    if options.lengths is None:
        lengths = sst2_lengths(SAMPLES, np.random.default_rng(0))
    else:
        lengths = read_lengths(options.lengths)
    question = Question(lengths, options.world_size, options.global_batch)
    policies = list(dict.fromkeys(arm["policy"]["kind"] for arm in arms(question, ()).values()))
    table = Table("policy", "other, us", "this, us", "this / other", "A/A", box=box.SIMPLE_HEAD)
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder, "lengths.npy"), lengths)
        words = [str(Path(folder, "lengths.npy")), str(options.world_size), str(options.global_batch)]
        ours, theirs = ([Planner(checkout, words) for _ in range(2)] for checkout in (HERE, other))
        try:
            for policy in policies:
                before, first, second, after = measure(policy, ours, theirs, options.rounds).T
                table.add_row(
                    policy,
                    f"{np.median(before + after) / 2:.2f}",
                    f"{np.median(first + second) / 2:.2f}",
                    spread((first + second) / (before + after)),
                    spread(second / first),
                )
        finally:
            for planner in (*ours, *theirs):
                planner.close()
    plain_console().print(table)


if __name__ == "__main__":
    main()
