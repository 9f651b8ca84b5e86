"""Runs in turn of the first policies of a ranking and of static: does the prediction hold?"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
from rich.table import Table

from ddpsched.advise.choice import Choice, as_predicted
from ddpsched.config import RunConfig, parse
from ddpsched.errors import RunError
from ddpsched.interleaved import run_interleaved
from ddpsched.planning.prediction import ALIKE, Prediction
from ddpsched.records import RECORDS

WARM_UP = 4  # steps that are left out
HOLDS = 0.10  # of a ratio, by which a prediction may be off
LEFT_OUT = 0.05  # of the steps at each end, by their ratio: a step that the machine holds up for seconds is no policy's


@dataclass(frozen=True)
class Measured:
    """``ratio``: a policy's mean step time over static's, whose steps ran in turn with its own, on the same samples.

    The twentieth of the steps with the largest ratios is left out, and that with the smallest, which is where static
    was held up. ``low``, ``high``: the middle half of the ratios of single steps. ``predicted``: None for static again
    (A/A).
    """

    name: str
    ratio: float
    low: float
    high: float
    predicted: float | None


def measure(choice: Choice, steps: int, first: int) -> list[Measured]:
    """Run static twice and ``first`` others in turn, ``steps`` of each; return their times over static's.

    The others are the one that is taken, and the first of the ranking; where memory does not hold static's plans, the
    one that stands in for it is run twice.
    Runs are written to ``outputs/advise``, in place of those of an earlier call. Called by all ranks together.
    Raises RunError where one of them fails.
    """
    static = next(each for each in choice.ranking if each.band == 0)
    others: list[Prediction] = []
    for each in (choice.chosen, *choice.ranking):  # of equal plans, as where more micro-batches do not pay, one alone
        if each is not static and not any(abs(each.ratio - other.ratio) < ALIKE for other in others):
            others.append(each)
    again = f"{static.name} again"
    arms = [(static.name, static, None), (again, static, None), *((p.name, p, p.ratio) for p in others[:first])]
    configs = [_trial(choice.given, name, prediction, steps, aa=name == again) for name, prediction, _ in arms]
    failed = run_interleaved(configs, overwrite=True, about={"margin": HOLDS})
    if failed:
        name, why = next(iter(failed.items()))
        raise RunError(f"advise: the run of {name} failed: {why}")
    times = [_step_times(config.run_dir) for config in configs]
    found = []
    static_s = times[0][WARM_UP:]
    for (name, _, predicted), seconds in zip(arms[1:], times[1:], strict=True):
        found.append(compared(name, seconds[WARM_UP:], static_s, predicted))
    return found


def compared(name: str, seconds: np.ndarray, static_s: np.ndarray, predicted: float | None) -> Measured:
    """Return what is measured of a policy. ``seconds``, ``static_s``: of the same steps, (steps,)."""
    ratios = seconds / static_s
    low, high = np.percentile(ratios, (25, 75)).tolist()
    ends = round(LEFT_OUT * len(ratios))
    kept = np.argsort(ratios)[ends : len(ratios) - ends]
    return Measured(name, float(seconds[kept].sum() / static_s[kept].sum()), low, high, predicted)


def _trial(config: RunConfig, name: str, prediction: Prediction, steps: int, aa: bool) -> RunConfig:
    """Return the config of a trial of one policy. ``aa``: it repeats another."""
    table = as_predicted(config, prediction).model_dump(exclude_none=True)
    table |= {"study": "advise", "name": re.sub("[^a-z0-9]+", "-", name.lower()), "steps": steps, "aa": aa}
    table["train"] |= {"save_model": False, "checkpoint_every": 0, "eval_every": 0}
    table.pop("epochs", None)
    return parse(table, "ddpsched advise")


def _step_times(folder: Path) -> np.ndarray:
    """Return the seconds of each step, of the slowest rank, (steps,)."""
    table = parquet.read_table(folder / RECORDS, columns=["step", "step_s"]).to_pydict()
    steps, seconds = np.array(table["step"]), np.array(table["step_s"], dtype=np.float64)
    found = np.zeros(steps.max() + 1)
    np.maximum.at(found, steps, seconds)
    return found


def table(measured: Sequence[Measured]) -> Table:
    """Return what was measured beside what was predicted."""
    rows = Table(title="measured in turn, times static's", title_justify="left")
    for head in ("policy", "mean", "half of the steps", "predicted", ""):
        rows.add_column(head, justify="left" if head in ("policy", "") else "right")
    for each in measured:
        predicted, verdict = "", "(A/A: what noise looks like)"
        if each.predicted is not None:
            off = each.predicted / each.ratio - 1
            predicted = f"{each.predicted:.3f}"
            verdict = f"the prediction {'held' if abs(off) <= HOLDS else 'did not hold'}: {off:+.1%}"
        rows.add_row(each.name, f"{each.ratio:.3f}", f"{each.low:.3f} to {each.high:.3f}", predicted, verdict)
    return rows
