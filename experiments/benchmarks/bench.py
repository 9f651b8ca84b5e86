"""Times side by side: arms in turn, the first one twice (A/A), in several launches, with intervals and verdicts.

A launch is a fresh process (or a fresh set of ranks): what a start brings, such as where memory lies, is the same for
all arms in it and differs from launch to launch, so launches are what intervals are made of.
"""

import argparse
import gc
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rich import box
from rich.table import Table

from analysis.stats import MIN_LAUNCHES, MIN_STEPS, Pairs, Ratio, floor_verdicts, ratio, verdicts
from ddpsched.errors import DdpschedError
from ddpsched.interleaved import order_of
from ddpsched.processes import end_with_parent

AA = "A/A"
LAUNCHES, ROUNDS = 5, MIN_STEPS
LEFT_OUT = 3  # first steps of a training, while allocators settle
Seconds = dict[str, npt.NDArray[np.float64]]  # by arm: (rounds,)


def add_options(parser: argparse.ArgumentParser, rounds: int = ROUNDS, launches: int = LAUNCHES) -> None:
    """Add --rounds and --launches, with their defaults."""
    least = f"fewer than {MIN_STEPS} give no interval"
    parser.add_argument("--rounds", type=_count, default=rounds, help=f"of all arms in a launch ({rounds}); {least}")
    add_launches(parser, launches)


def add_launches(parser: argparse.ArgumentParser, launches: int = LAUNCHES) -> None:
    """Add --launches, with its default."""
    least = f"fewer than {MIN_LAUNCHES} give no interval"
    parser.add_argument(
        "--launches", type=_count, default=launches, help=f"fresh starts of all arms ({launches}); {least}"
    )


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number, at least 1")
    return int(text)


def in_turn(arms: Mapping[str, Callable[[], float]], rounds: int, seed: int = 0, left_out: int = 1) -> Seconds:
    """Return what each arm's function returned in each round, seconds; the first arm is there twice, as A/A.

    The order of a round is drawn at random and reversed in the next. ``arms``: with an A/A of its own where the second
    time is not to be the same function's. ``left_out``: rounds before these, not counted.
    """
    first = next(iter(arms))
    everything = {first: arms[first], AA: arms[first], **arms}
    names, times = list(everything), {name: list[float]() for name in everything}
    for round_ in range(left_out + rounds):
        for place in order_of(len(names), round_, seed):
            times[names[place]].append(_without_collection(everything[names[place]]))
    return {name: np.array(values[left_out:]) for name, values in times.items()}


def _without_collection(arm: Callable[[], float]) -> float:
    """Return what the arm returns, with no search for garbage meanwhile.

    One comes after a fixed number of new objects, and so in the same turns of every launch: A/A pairs differed by 15 %.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return arm()
    finally:
        if collects:
            gc.enable()


def launched(measure: Callable[..., Any], *arguments: Any, launches: int = LAUNCHES) -> list[Any]:
    """Return what ``measure(*arguments, seed)`` returns in so many fresh processes, one after another.

    ``measure`` lies in a module that can be imported. Raises its error where that is one of ddpsched's, RuntimeError
    where a process ends without an answer.
    """
    context = multiprocessing.get_context("spawn")
    answers = []
    for seed in range(launches):
        near, far = context.Pipe(duplex=False)
        process = context.Process(target=_answer, args=(far, measure, (*arguments, seed)))
        process.start()
        far.close()
        try:
            answers.append(near.recv())
        except EOFError:
            process.join()
            raise RuntimeError(f"launch {seed}: its process ended with exit code {process.exitcode}") from None
        process.join()
        if isinstance(answers[-1], DdpschedError):
            raise answers[-1]
    return answers


def _answer(pipe: Any, measure: Callable[..., Any], arguments: Sequence[Any]) -> None:
    end_with_parent()  # else what a killed benchmark has begun takes a core beside the next one
    try:
        pipe.send(measure(*arguments))
    except DdpschedError as error:
        pipe.send(error)


def ratios(launches: Sequence[Seconds], seed: int = 0) -> dict[str, Ratio]:
    """Return each arm's ratio to the first one's time, over launches."""
    rng, first = np.random.default_rng(seed), next(iter(launches[0]))
    return {
        arm: ratio([Pairs(each[arm], each[first]) for each in launches], rng) for arm in launches[0] if arm != first
    }


@dataclass(frozen=True)
class Judged:
    """An arm of a page.

    Attributes:
        seconds: its mean over rounds and launches.
        ratio: its time over the first arm's; None for the first.
        verdict: the word on this ratio; empty for the first.
    """

    seconds: float
    ratio: Ratio | None = None
    verdict: str = ""

    @property
    def text(self) -> str:
        """Its ratio with the interval, ``0.712 (0.690 to 0.734)``; nothing for the first."""
        return "" if self.ratio is None else text(self.ratio)


def judged(sections: Sequence[Sequence[Seconds]], margin: float | None = None) -> list[dict[str, Judged]]:
    """Return the arms of each section of a page, with verdicts above the noise of the section's A/A.

    ``sections``: the launches of each. All arms of all sections are one family of verdicts, and all A/A pairs another.
    ``margin``: for "the same".
    """
    found = [ratios(launches) for launches in sections]
    words = iter(verdicts([(each[arm], each[AA]) for each in found for arm in each if arm != AA], margin))
    floors = iter(floor_verdicts([each[AA] for each in found]))
    return [dict(_section(launches, each, words, floors)) for launches, each in zip(sections, found, strict=True)]


def _section(
    launches: Sequence[Seconds], found: Mapping[str, Ratio], words: Iterator[str], floors: Iterator[str]
) -> Iterator[tuple[str, Judged]]:
    for arm in launches[0]:
        seconds = float(np.mean([each[arm].mean() for each in launches]))
        if arm not in found:
            yield arm, Judged(seconds)
        else:
            yield arm, Judged(seconds, found[arm], next(floors if arm == AA else words))


def rounded(seconds: npt.NDArray[np.float64]) -> list[float]:
    """Return the seconds of a launch's rounds to the microsecond, as a file holds them."""
    return [float(each) for each in np.round(seconds, 6)]


def with_ratios(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a benchmark's stored rows with what follows from their seconds, each row's over the first one's.

    rows: of each arm, ``arm`` and ``launches_s``, the seconds of all rounds by launch. Added are ``ratio``, its value
    and limits (None for the first arm, and for limits that there are none of), and ``verdict``.
    """
    launches = [
        {row["arm"]: np.array(seconds) for row, seconds in zip(rows, of_all, strict=True)}
        for of_all in zip(*(row["launches_s"] for row in rows), strict=True)
    ]
    (found,) = judged([launches])
    return [
        {**row, "ratio": each.ratio and each.ratio.as_row(), "verdict": each.verdict or None}
        for row, each in zip(rows, found.values(), strict=True)
    ]


def tables(sections: Mapping[str, Sequence[Seconds]], unit: str = "s", scale: float = 1.0) -> list[Table]:
    """Return a table a section, a row an arm: its mean time, its ratio to the first arm's, and the verdict.

    ``sections``: the launches of each by title. ``scale``: from seconds to ``unit``.
    """
    shown = []
    for title, arms in zip(sections, judged(list(sections.values())), strict=True):
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
        table.add_column("arm", no_wrap=True)
        for heading in (unit, f"/ {next(iter(arms))} (95 %)"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("verdict")
        for arm, each in arms.items():
            table.add_row(arm, f"{scale * each.seconds:.4g}", each.text, each.verdict)
        shown.append(table)
    return shown


def table(launches: Sequence[Seconds], title: str, unit: str = "s", scale: float = 1.0) -> Table:
    """Return the table of a page with one section."""
    return tables({title: launches}, unit, scale)[0]


def text(found: Ratio) -> str:
    """Return a ratio with its interval, ``0.712 (0.690 to 0.734)``; without, where it has none."""
    value, low, high = (f"{each:.3f}" if each < 10 else f"{each:.1f}" for each in (found.value, found.low, found.high))
    return value if found.reason else f"{value} ({low} to {high})"
