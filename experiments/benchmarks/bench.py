"""Times side by side: arms in turn, the first one twice (A/A), in several launches, with intervals and verdicts.

A launch is a fresh process (or a fresh set of ranks): what a start brings, such as where memory lies, is the same for
all arms in it and differs from launch to launch, so launches are what intervals are made of.
"""

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from rich import box
from rich.table import Table

from analysis.stats import Pairs, Ratio, floor_verdict, ratio, verdicts
from ddpsched.interleaved import order_of

AA = "A/A"
LAUNCHES = 3
Seconds = dict[str, npt.NDArray[np.float64]]  # by arm: (rounds,)


def in_turn(arms: Mapping[str, Callable[[], float]], rounds: int, seed: int = 0, left_out: int = 1) -> Seconds:
    """Return what each arm's function returned in each round, seconds; the first arm is there twice, as A/A.

    The order of a round is drawn at random and reversed in the next. ``left_out``: rounds before these, not counted.
    """
    first = next(iter(arms))
    everything = {first: arms[first], AA: arms[first], **{name: arms[name] for name in list(arms)[1:]}}
    names, times = list(everything), {name: list[float]() for name in everything}
    for round_ in range(left_out + rounds):
        for place in order_of(len(names), round_, seed):
            times[names[place]].append(everything[names[place]]())
    return {name: np.array(values[left_out:]) for name, values in times.items()}


def launched(measure: Callable[..., Any], *arguments: Any, launches: int = LAUNCHES) -> list[Any]:
    """Return what ``measure(*arguments, seed)`` returns in so many fresh processes, one after another.

    Raises RuntimeError where one of them ends without an answer.
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
    return answers


def _answer(pipe: Any, measure: Callable[..., Any], arguments: Sequence[Any]) -> None:
    pipe.send(measure(*arguments))


def ratios(launches: Sequence[Seconds], seed: int = 0) -> dict[str, Ratio]:
    """Return each arm's ratio to the first one's time, over launches."""
    rng, first = np.random.default_rng(seed), next(iter(launches[0]))
    return {
        arm: ratio([Pairs(each[arm], each[first]) for each in launches], rng) for arm in launches[0] if arm != first
    }


def judged(found: Mapping[str, Ratio], margin: float | None = None) -> dict[str, str]:
    """Return a verdict for each arm of ``ratios``: above the noise of A/A, the family all of them."""
    arms = [arm for arm in found if arm != AA]
    words = verdicts([(found[arm], found[AA]) for arm in arms], margin)
    return {AA: floor_verdict(found[AA]), **dict(zip(arms, words, strict=True))}


def table(launches: Sequence[Seconds], title: str, unit: str = "s", scale: float = 1.0) -> Table:
    """Return a row an arm: its mean time, its ratio to the first arm's with its interval, and the verdict."""
    found = ratios(launches)
    words = judged(found)
    shown = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    shown.add_column("arm", no_wrap=True)
    first = next(iter(launches[0]))
    for heading in (unit, f"/ {first} (95 %)"):
        shown.add_column(heading, justify="right", no_wrap=True)
    shown.add_column("verdict")
    for arm in launches[0]:
        mean = scale * float(np.mean([each[arm].mean() for each in launches]))
        shown.add_row(arm, f"{mean:.4g}", text(found.get(arm)), words.get(arm, ""))
    return shown


def text(found: Ratio | None) -> str:
    """Return ``0.712 (0.690 to 0.734)``; nothing for the arm that others are compared with."""
    if found is None:
        return ""
    return f"{found.value:.3f}" if found.reason else f"{found.value:.3f} ({found.low:.3f} to {found.high:.3f})"
