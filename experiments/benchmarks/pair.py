"""Slowdown of two ranks on this machine: one process at work alone, and two at once, one thread each.

    python -m experiments.benchmarks.pair [--rounds 6] [--seconds 10]

Two workloads: a training step (forward and backward) of DistilBERT's shape with random weights, 8 samples of 32 tokens,
and a product of two matrices. A round is alone, pair, pair, alone, so that a drift of the machine affects both alike;
the process that works alone changes from round to round. *alone A* and *alone A'* are the first and the last of a
round: their ratio is the noise, and *pair / alone* is significant only beyond it. Of a pair, steps are counted while
both are at work. The processor time of each process, steal and load show whether other processes were at work
meanwhile: then nothing can be concluded. Results differ between machines, and on one machine from day to day: run it
with each study.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from ddpsched.doctor.pair import Product, Rates, Training, Workload, conclude, measure, noise, spread
from ddpsched.environment import describe, stolen_s
from ddpsched.terminal import plain_console

ROUNDS, SECONDS = 6, 10.0
SHAPES = ("tiny", "distilbert-base-uncased", "nreimers/MiniLM-L6-H384-uncased")  # built in, so that no hub is needed
WORKLOADS: tuple[Workload, ...] = (Training(), Product())


def study_test(workload: Workload, rounds: int, seconds: float) -> dict[str, Any]:
    """Return a measurement of one workload, and its verdict, as plain values for a study's pair.json."""
    before = stolen_s()
    begin = time.perf_counter()
    rates = measure(workload, rounds, seconds)
    after, took_s = stolen_s(), time.perf_counter() - begin
    return {
        "workload": str(workload),
        "rounds": rounds,
        "seconds": seconds,
        "alone_per_s": [statistics.mean(each) for each in (rates.first, rates.last)],
        "pair_per_s": [statistics.mean(each) for each in rates.pairs],
        "pair_over_alone": rates.ratios,
        "alone_over_alone": rates.same,
        "steal": None if before is None or after is None else (after - before) / took_s,
        "verdict": verdict(str(workload), rates),
    }


def verdict(name: str, rates: Rates) -> str:
    """Return in a sentence whether two ranks slow each other."""
    figures = f"(ratio {spread(rates.ratios)}, A/A {spread(rates.same)})"
    conclusion = conclude(rates)
    if conclusion == "disturbed":
        return (
            f"{name}: no conclusion whether two ranks on this machine slow each other {figures}: other processes were "
            f"at work, so that one of a pair got {rates.processor_share:.0%} of a processor; run this again when the "
            "machine is quiet"
        )
    if conclusion == "slower":
        return f"{name}: two ranks on this machine slow each other {figures}"
    if conclusion == "equal":
        return f"{name}: two ranks on this machine do not slow each other {figures}"
    return (
        f"{name}: two ranks on this machine slow each other by less than {noise(rates):.0%}, if at all {figures}; one "
        "process alone is not equally fast twice: for a smaller bound run this again when the machine is quieter, or "
        "with more --seconds"
    )


def report(measured: dict[str, Rates]) -> Table:
    """Return the table, a line a workload."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("workload", no_wrap=True)
    heads = (
        "alone A\nsteps/s",
        "alone A'\nsteps/s",
        "pair\nsteps/s",
        "pair / alone\nof rounds",
        "A' / A\nof rounds",
    )
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for name, rates in measured.items():
        alone = [f"{statistics.mean(each):.3g}" for each in (rates.first, rates.last)]
        pair = " + ".join(f"{statistics.mean(each):.3g}" for each in rates.pairs)
        table.add_row(name, *alone, pair, spread(rates.ratios), spread(rates.same))
    return table


def steal() -> tuple[int, int] | None:
    """Return the (stolen, all) ticks of the machine's processors since it started; None where /proc has none."""
    try:
        words = Path("/proc/stat").read_text().splitlines()[0].split()
    except OSError:
        return None
    ticks = [int(word) for word in words[1:9]]  # guests' time, behind these, is in user's already
    return ticks[7], sum(ticks)


def cores(folder: Path = Path("/sys/devices/system/cpu")) -> str:
    """Return as text how many processors there are, and which of them /sys lists as threads of one core."""
    here = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    listed = {}
    for cpu in sorted(here):
        path = folder / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        if path.exists():
            listed[cpu] = path.read_text().strip()
    shared = sorted({each for each in listed.values() if not each.isdigit()})
    if not listed:
        siblings = "/sys does not list which of them are threads of one core"
    elif shared:
        siblings = f"/sys lists as threads of one core: {'; '.join(shared)}"
    else:
        siblings = "/sys lists no two of them as threads of one core (a virtual machine may not know)"
    return f"{len(here)} processor(s), {describe()['cpu']}; {siblings}"


def main(words: Sequence[str] | None = None, workloads: Sequence[Workload] = WORKLOADS) -> int:
    """Measure, and print the table and a sentence for each workload; return 0."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmarks.pair",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds of alone, pair, pair, alone ({ROUNDS})")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of each part of a round ({SECONDS:g})")
    options = parser.parse_args(words)
    if options.rounds < 1 or options.seconds <= 0:
        parser.error(
            f"--rounds {options.rounds} --seconds {options.seconds:g}: give at least 1 round, of more than 0 s"
        )
    print(f"assumed: {cores()}; one thread a process, not pinned to a processor")
    before, load = steal(), os.getloadavg()[0]
    measured = {str(each): measure(each, options.rounds, options.seconds) for each in workloads}
    plain_console(at_least=120).print(report(measured))
    for name, rates in measured.items():
        print(verdict(name, rates))
    after = steal()
    if before is None or after is None:
        stolen = "not reported by this system"
    else:
        stolen = f"{(after[0] - before[0]) / max(1, after[1] - before[1]):.1%} of all processors' time"
    print(f"steal: {stolen}; load average before {load:.2f}, after {os.getloadavg()[0]:.2f} (this adds 1 to 2)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
