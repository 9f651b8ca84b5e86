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
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from ddpsched.environment import describe, stolen_s
from ddpsched.terminal import plain_console

ROUNDS, SECONDS, WARM_UP = 6, 10.0, 2
MATERIAL = 0.05  # a pair that is slower by less counts as equally fast
UNDISTURBED = 0.95  # share of a processor; a process that got less was slowed by others than its pair
START_S = 300.0  # limit for importing torch and building a model, on a busy machine
Stamps = list[float]  # when the first step began, and when each ended


SHAPES = ("tiny", "distilbert-base-uncased", "nreimers/MiniLM-L6-H384-uncased")  # built in, so that no hub is needed


@dataclass(frozen=True)
class Training:
    """Steps of a classifier on ``count`` samples of ``length`` tokens."""

    model: str = "distilbert-base-uncased"
    count: int = 8
    length: int = 32

    def __str__(self) -> str:
        return f"{self.model}, {self.count} x {self.length}"

    def step(self) -> Callable[[], None]:
        """Return a function that runs one training step, without the optimizer."""
        import torch

        from ddpsched.config import ModelConfig
        from ddpsched.training.model import build_model

        torch.manual_seed(0)
        model: Any = build_model(ModelConfig(name=self.model), 2, 30_522, 0).train()
        tokens, labels = torch.randint(1, 30_522, (self.count, self.length)), torch.arange(self.count) % 2

        def work() -> None:
            model.zero_grad(set_to_none=True)
            model(input_ids=tokens, labels=labels).loss.backward()

        return work


@dataclass(frozen=True)
class Product:
    """Products of two square matrices."""

    size: int = 1024

    def __str__(self) -> str:
        return f"matrices, {self.size} x {self.size}"

    def step(self) -> Callable[[], None]:
        """Return a function that computes one product."""
        import torch

        one, other = torch.randn(2, self.size, self.size)
        out = torch.empty_like(one)

        def work() -> None:
            torch.mm(one, other, out=out)

        return work


Workload = Training | Product
WORKLOADS: tuple[Workload, ...] = (Training(), Product())


@dataclass
class Rates:
    """Steps a second by round.

    Attributes:
        first: of the process that works alone, at the beginning of the round.
        last: the same at its end.
        pairs: of each process, the mean over both pairs of the round.
        ratios: pair over alone, of the process that works alone too.
        processor_share: the least share of a processor that a process got in a pair.
    """

    first: list[float] = field(default_factory=list)
    last: list[float] = field(default_factory=list)
    pairs: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    ratios: list[float] = field(default_factory=list)
    processor_share: float = 1.0

    @property
    def same(self) -> list[float]:
        """A' over A by round."""
        return [last / first for first, last in zip(self.first, self.last, strict=True)]


def _work(workload: Workload, pipe: Connection) -> None:
    """Run steps from "start" to "stop", as often as requested through the pipe. Runs in a process.

    Sends the time at which each step ended, and the share of a processor that the process got.
    """
    import torch

    torch.set_num_threads(1)
    step = workload.step()
    for _ in range(WARM_UP):
        step()
    pipe.send("ready")
    while pipe.recv() == "start":
        stamps, began = [time.perf_counter()], time.process_time()  # stamps: of one clock for all processes
        while not pipe.poll():
            step()
            stamps.append(time.perf_counter())
        pipe.recv()
        pipe.send((stamps, (time.process_time() - began) / (stamps[-1] - stamps[0])))


@contextmanager
def processes(workload: Workload) -> Iterator[list[Connection]]:
    """Yield pipes to two processes that are ready to work. Raises TimeoutError where one does not become ready."""
    context, pipes, started = multiprocessing.get_context("spawn"), list[Connection](), []
    try:
        for _ in range(2):
            near, far = context.Pipe()
            process = context.Process(target=_work, args=(workload, far), daemon=True)
            process.start()
            far.close()
            pipes.append(near)
            started.append(process)
        for pipe in pipes:
            if not pipe.poll(START_S):
                raise TimeoutError(f"{workload}: a process was not ready within {START_S:.0f} s; free some memory")
            pipe.recv()
        yield pipes
    finally:
        for process in started:
            process.kill()
            process.join()


def together(pipes: Sequence[Connection], seconds: float) -> tuple[list[float], float]:
    """Let the processes work for so many seconds; return the steps a second of each, and the least processor share.

    Steps are counted over the time in which all of them are at work.
    """
    for pipe in pipes:
        pipe.send("start")
    time.sleep(seconds)
    for pipe in pipes:
        pipe.send("stop")
    reports: list[tuple[Stamps, float]] = [pipe.recv() for pipe in pipes]
    begin, end = max(stamps[0] for stamps, _ in reports), min(stamps[-1] for stamps, _ in reports)
    return [rate(stamps, begin, end) for stamps, _ in reports], min(share for _, share in reports)


def rate(stamps: Stamps, begin: float, end: float) -> float:
    """Return steps a second from ``begin`` to ``end``; a step that lies across an end counts by its share within.

    >>> rate([0.0, 1.0, 2.0, 4.0], 1.0, 3.0)
    0.75
    """
    done = 0.0
    for start, stop in pairwise(stamps):
        done += max(0.0, min(stop, end) - max(start, begin)) / (stop - start)
    return done / (end - begin)


def measure(workload: Workload, rounds: int, seconds: float) -> Rates:
    """Return the rates of rounds: alone, pair, pair, alone, each of so many seconds."""
    measured = Rates()
    with processes(workload) as pipes:
        for number in range(rounds):
            alone = number % 2
            (first,), _ = together([pipes[alone]], seconds)
            pairs, shares = zip(*(together(pipes, seconds) for _ in range(2)), strict=True)
            (last,), _ = together([pipes[alone]], seconds)
            measured.processor_share = min(measured.processor_share, *shares)
            measured.first.append(first)
            measured.last.append(last)
            for process, rates in enumerate(measured.pairs):
                rates.append(statistics.mean(each[process] for each in pairs))
            measured.ratios.append(measured.pairs[alone][-1] / statistics.mean((first, last)))
    return measured


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
    ratio, noise = statistics.mean(rates.ratios), max(abs(each - 1) for each in rates.same)
    figures = f"(ratio {spread(rates.ratios)}, A/A {spread(rates.same)})"
    if rates.processor_share < UNDISTURBED:
        return (
            f"{name}: no conclusion whether two ranks on this machine slow each other {figures}: other processes were "
            f"at work, so that one of a pair got {rates.processor_share:.0%} of a processor; run this again when the "
            "machine is quiet"
        )
    if ratio < 1 - max(MATERIAL, noise):
        return f"{name}: two ranks on this machine slow each other {figures}"
    if noise <= MATERIAL:
        return f"{name}: two ranks on this machine do not slow each other {figures}"
    return (
        f"{name}: two ranks on this machine slow each other by less than {noise:.0%}, if at all {figures}; one process "
        "alone is not equally fast twice: for a smaller bound run this again when the machine is quieter, or with more "
        "--seconds"
    )


def spread(values: Sequence[float]) -> str:
    """Return the mean, the least and the largest value as text."""
    return f"{statistics.mean(values):.3f}, {min(values):.3f} to {max(values):.3f}"


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
