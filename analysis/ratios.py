"""Ratios of times between the arms of a setting, in pairs of the steps that they ran in turn.

Times are compared only between runs of one launch, which the same moment of the machine met alike, and only where they
run the same data in the same global order. The floor beneath all ratios is the baseline over itself, its A/A run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.batches import SUMS
from analysis.launches import BESIDE, is_timed
from analysis.load import Run
from analysis.metrics import warmup_steps
from analysis.settings import AA, LABELS, Setting, couples, flatten, part
from analysis.stats import Pairs, Ratio, Statistic, autocorrelation, effective_size, floor_verdicts, ratio, verdicts

STATIC = "static"  # the baseline of a setting without an A/A run
MARGIN = 0.02  # of a study that stated none
ANOTHER = "another "  # with which the reasons of other data and orders begin
STATISTICS: tuple[Statistic, ...] = ("mean", 0.95, 0.99)
COMPUTED = "computed times"  # of simulated runs, the same in any launch


@dataclass(frozen=True, eq=False)
class Compared:
    """An arm's times against its baseline's, in one column of the records.

    Attributes:
        arm: its label.
        baseline: that of the arm that it is compared with.
        column: of ``metrics.per_step``, in seconds.
        ratio: of means; of time per real token where steps hold other samples.
        p95: the ratio of their P95.
        p99: the ratio of their P99.
        num_steps: pairs of steps in all launches.
        num_launches: launches in which both ran.
        least_steps: pairs of steps in the launch that has the fewest.
        rho: lag-1 autocorrelation of the pairs' differences, mean over launches.
        effective: steps that would tell as much if they were independent, in all launches.
    """

    arm: str
    baseline: str
    column: str
    ratio: Ratio
    p95: Ratio
    p99: Ratio
    num_steps: int = 0
    num_launches: int = 0
    least_steps: int = 0
    rho: float = float("nan")
    effective: float = float("nan")

    def row(self, verdict: str | None = None) -> dict[str, Any]:
        """Return the plain values, with a verdict where the page gives one."""
        return {
            "arm": self.arm,
            "baseline": self.baseline,
            "column": self.column,
            "ratio": self.ratio.value,
            "low": self.ratio.low,
            "high": self.ratio.high,
            "p95_ratio": self.p95.value,
            "p95_low": self.p95.low,
            "p95_high": self.p95.high,
            "p99_ratio": self.p99.value,
            "p99_low": self.p99.low,
            "p99_high": self.p99.high,
            "num_steps": self.num_steps,
            "num_launches": self.num_launches,
            "least_steps": self.least_steps,
            "rho": self.rho,
            "effective_steps": self.effective,
            "reason": self.ratio.reason or None,
            "verdict": verdict,
        }


def baseline_of(setting: Setting) -> str | None:
    """Return the arm that the A/A run repeats; without one static, where it is there."""
    if AA not in setting.arms:
        return STATIC if STATIC in setting.arms else None
    again = _identity(setting.arms[AA][0])
    same = (arm for arm, runs in setting.arms.items() if arm != AA and any(_identity(run) == again for run in runs))
    return next(same, None)


def _identity(run: Run) -> dict[str, Any]:
    """Return what makes an arm, whichever of its launches: one may be left out of the baseline and not of A/A."""
    return {key: value for key, value in flatten(run.config).items() if key not in (*LABELS, "seed", "steps")}


def margin_of(setting: Setting) -> float:
    """Return the margin for "the same" that the study stated before it ran."""
    stated = [run.launch.get("margin") for run in setting.runs]
    return next((float(margin) for margin in stated if margin is not None), MARGIN)


def refusal(mine: Run, other: Run) -> str | None:
    """Return why the times of two runs are not compared; None where they are."""
    for name, tables in (("data", ("data",)), ("global order", ("order", "seed"))):
        ours, theirs = part(mine.config, tables), part(other.config, tables)
        ours, theirs = ({k: v for k, v in each.items() if k != "data.pad_to"} for each in (ours, theirs))
        keys = [key for key in ours | theirs if ours.get(key) != theirs.get(key)]
        if keys:
            return f"{ANOTHER}{name}: {keys[0]} = {ours.get(keys[0])!r} and {theirs.get(keys[0])!r}"
    launches = [run.launch for run in (mine, other)]
    if mine.mode == "simulated":
        return COMPUTED
    if not all(launches):
        return "not run in turn"
    if launches[0]["id"] != launches[1]["id"]:
        return "of two launches"
    return None


def refused(setting: Setting, both: Sequence[tuple[Run, Run]]) -> str | None:
    """Return why the times of couples of runs of a setting are not compared; None where they are."""
    reasons = [reason for two in both if (reason := refusal(*two)) is not None]
    return next(iter(reasons), None if is_timed(setting) else BESIDE)


def compare(setting: Setting, arm: str, baseline: str, column: str, rng: np.random.Generator) -> Compared:
    """Return the ratio of an arm's times to a baseline's, over the launches in which both ran.

    Where that is not allowed the ratio has no interval, and says why; the ratio of means is there all the same.
    """
    both = couples(setting.arms[arm], setting.arms[baseline])
    if not both:
        missing = Ratio(float("nan"), reason="no seed that both ran")
        return Compared(arm, baseline, column, missing, missing, missing)
    tables = [(mine.steps, other.steps) for mine, other in both]
    launches = [each for each in (pairs(*two, column) for two in tables) if each is not None]
    why = refused(setting, both)
    if not launches or why:
        mean, p95, p99 = (_without_interval(launches, each, why or "not measured") for each in STATISTICS)
        return Compared(arm, baseline, column, mean, p95, p99)
    differences = [np.log(each.x / each.y) for each in launches]
    mean, p95, p99 = (ratio(launches, rng, statistic=each) for each in STATISTICS)
    return Compared(
        arm,
        baseline,
        column,
        mean,
        p95,
        p99,
        num_steps=sum(map(len, differences)),
        num_launches=len(launches),
        least_steps=min(map(len, differences)),
        rho=float(np.mean([autocorrelation(each) for each in differences])),
        effective=float(sum(min(len(each), effective_size(each)) for each in differences)),
    )


def _without_interval(launches: Sequence[Pairs], statistic: Statistic, reason: str) -> Ratio:
    value = float(np.exp(np.mean([each.log_ratio(statistic) for each in launches]))) if launches else float("nan")
    return Ratio(value, reason=reason)


def pairs(mine: pd.DataFrame, other: pd.DataFrame, column: str) -> Pairs | None:
    """Return the steps that both have measured, the first ones left out; None without any.

    ``mine``, ``other``: ``per_step`` tables. Where steps do not hold the same samples, which shows in the sums of
    their lengths' powers 0 to 2, time is per real token.
    """
    steps, here, there = np.intersect1d(mine.index, other.index, assume_unique=True, return_indices=True)
    if not len(steps):
        return None
    places = [each[warmup_steps(len(steps)) :] for each in (here, there)]
    x, y = (table[column].to_numpy(dtype=np.float64)[at] for table, at in zip((mine, other), places, strict=True))
    ran = (x > 0) & (y > 0)
    if not ran.any():
        return None
    ours, theirs = (
        {name: table[name].to_numpy(dtype=np.float64)[at[ran]] for name in SUMS}
        for table, at in zip((mine, other), places, strict=True)
    )
    if all(np.array_equal(ours[name], theirs[name], equal_nan=True) for name in SUMS):
        return Pairs(x[ran], y[ran])
    return Pairs(x[ran], y[ran], ours["num_tokens"], theirs["num_tokens"])


def between_steps(setting: Setting) -> tuple[float, float] | None:
    """Return the time from the end of a run's step to the beginning of the next run's, in seconds and as a share.

    Medians over all launches; the share is of a step. None where runs did not take turns, or the moments of their steps
    are not known. It holds the writing of records, which a run alone has as well, and a barrier over ranks.
    """
    if not all(run.took_turns for run in setting.runs):
        return None
    gaps, steps = list[float](), list[float]()
    for launch in {run.observation for run in setting.runs}:
        turns = pd.concat([_turns(run) for run in setting.runs if run.observation == launch]).sort_values("begin")
        gaps += (turns["begin"].shift(-1) - turns["begin"] - turns["took"]).dropna().tolist()
        steps += turns["took"].tolist()
    if not gaps:
        return None
    gap, step = float(np.median(gaps)), float(np.median(steps))
    return gap, gap / step


def _turns(run: Run) -> pd.DataFrame:
    """Return when each step of rank 0 began, and the seconds that it took this process; virtual ranks' take the sum."""
    columns = ["step", "unix_s", "plan_wait_s", "step_s", "optimizer_s"]
    first = run.records.loc[run.records["rank"] == 0, columns].dropna(subset=["unix_s"]).set_index("step")
    waited = first["plan_wait_s"].fillna(0)  # in step_s, and before the moment at which the step began
    took = first["step_s"]
    if run.mode == "virtual":
        took = run.records.groupby("step")["compute_s"].sum() + first["optimizer_s"] + waited
    return pd.DataFrame({"begin": first["unix_s"] - waited, "took": took}).dropna()


def judged(
    settings: Sequence[Setting], column: str, seed: int = 0, baselines: Sequence[str | None] | None = None
) -> list[list[dict[str, Any]]]:
    """Return for each setting of a page a row an arm: its ratio to the baseline, with a verdict.

    All arms of all settings are one family of Holm's correction, and all A/A runs another. ``baselines``: the arm of
    each setting that others are compared with; None for those that their A/A runs repeat, whose ratios to them are the
    floor in any case.
    """
    rng = np.random.default_rng(seed)
    repeated = [baseline_of(setting) for setting in settings]
    compared: list[list[Compared]] = []
    floors: list[Ratio] = []
    for setting, again, first in zip(settings, repeated, baselines or repeated, strict=True):
        others = [arm for arm in setting.arms if arm != first and (arm != AA or again == first)] if first else []
        compared.append([compare(setting, arm, str(first), column, rng) for arm in others])
        floor = next((each.ratio for each in compared[-1] if each.arm == AA), None)
        if floor is None and AA in setting.arms and again:
            floor = compare(setting, AA, again, column, rng).ratio
        floors.append(floor or Ratio(float("nan"), reason="it did not run"))
    measured = [
        (each.ratio, floor) for rows, floor in zip(compared, floors, strict=True) for each in rows if each.arm != AA
    ]
    words = iter(verdicts(measured, min(map(margin_of, settings), default=MARGIN)))
    return [
        [each.row(noise if each.arm == AA else next(words)) for each in rows]
        for rows, noise in zip(compared, floor_verdicts(floors), strict=True)
    ]
