"""Whether every rank makes the same plans, whatever its hash seed and the order of ranks.

``python -m experiments.reliability.digests [--steps 10000] [--seeds 20] [--freeze]``: so many steps, spread over all
policies, are planned in a process for each hash seed, with the ranks in an order of its own; see ``plan_streams.py``.
All digests of a case must be equal over ranks and processes.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import typer

from experiments.reliability.findings import Finding, Freeze, report

PLANNER = "experiments.reliability.plan_streams"
Digests = Mapping[str, Mapping[str, str]]  # by case, by stream
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def planned(steps: int, seed: int) -> Digests:
    """Return the digests of a process with this hash seed. Raises RuntimeError where it ends without them."""
    ended = subprocess.run(
        [sys.executable, "-m", PLANNER, str(steps), str(seed)],
        env={**os.environ, "PYTHONHASHSEED": str(seed), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    if ended.returncode:
        raise RuntimeError(f"hash seed {seed}: exit code {ended.returncode}\n{ended.stderr}")
    found: Digests = json.loads(ended.stdout)
    return found


def differing(found: Sequence[Digests]) -> list[str]:
    """Return a message for each case whose digests are not all equal, over streams and processes."""
    faults = []
    for case in found[0]:
        expected = found[0][case]["all"]
        odd = [
            f"{stream} of seed {seed}"
            for seed, each in enumerate(found)
            for stream, digest in each[case].items()
            if digest != expected
        ]
        if odd:
            faults.append(f"{case}: {len(odd)} other digests, the first of {odd[0]}")
    return faults


@app.command()
def main(
    steps: Annotated[int, typer.Option(min=1, help="over all policies")] = 10_000,
    seeds: Annotated[int, typer.Option(min=2, help="hash seeds, a process each")] = 20,
    freeze: Freeze = False,
) -> None:
    """Plan in many processes, and compare."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        found = list(pool.map(lambda seed: planned(steps, seed), range(seeds)))
    faults = differing(found)
    for fault in faults:
        print(f"FAULT {fault}")
    streams = sum(len(each) for each in found[0].values())
    finding = Finding(
        "digests",
        "Plan digests over hash seeds and orders of ranks",
        "equal on every rank",
        f"{steps:,} steps of {len(found[0])} cases, each on {seeds} hash seeds and by every rank "
        f"({streams * seeds:,} streams): {len(faults)} cases with unequal digests",
        not faults,
        f"python -m experiments.reliability.digests --steps {steps} --seeds {seeds}",
        {"faults": faults, "cases": list(found[0])},
    )
    raise typer.Exit(report(finding, freeze))


if __name__ == "__main__":
    app()
