"""Slowdown of two processes: one at work alone, and two at once, one thread each.

A round is alone, pair, pair, alone, so that a drift of the machine affects both alike; the process that works alone
changes from round to round. Of a pair, steps are counted while both are at work. The first and the last part of a round
are the same work twice: their ratio is the noise, and pair / alone is significant only beyond it.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any, Literal

from ddpsched.local_ranks import rank_context

WARM_UP = 2
MATERIAL = 0.05  # a pair that is slower by less counts as equally fast
UNDISTURBED = 0.95  # share of a processor; a process that got less was slowed by others than its pair
START_S = 300.0  # limit for importing torch and building a model, on a busy machine
Stamps = list[float]  # when the first step began, and when each ended
Conclusion = Literal["disturbed", "slower", "equal", "unclear"]


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
    context, pipes, started = rank_context(), list[Connection](), []
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


def noise(rates: Rates) -> float:
    """Return by how much the process that works alone differed from itself at most, relative to 1."""
    return max(abs(each - 1) for each in rates.same)


def conclude(rates: Rates) -> Conclusion:
    """Return whether a pair is slower than one process alone.

    "disturbed": other processes were at work. "unclear": not slower by more than the noise, which is material.
    """
    if rates.processor_share < UNDISTURBED:
        return "disturbed"
    if statistics.mean(rates.ratios) < 1 - max(MATERIAL, noise(rates)):
        return "slower"
    return "equal" if noise(rates) <= MATERIAL else "unclear"


def spread(values: Sequence[float]) -> str:
    """Return the mean, the least and the largest value as text."""
    return f"{statistics.mean(values):.3f}, {min(values):.3f} to {max(values):.3f}"
