"""Ratios of times between arms that ran interleaved in several launches, with intervals and verdicts.

A *launch* is one start of all arms, with one seed. In it step t of all arms runs at about the same moment, so what the
machine does meanwhile meets all arms alike and cancels in their ratio. What a start itself brings (addresses, caches,
neighbours on the machine) stays for the whole launch: more steps do not average it out, only more launches do. So a
launch is one observation, r_l, the log of its ratio, and the interval of L launches is

    mean of r +- t sqrt(max(S^2, c W) / L), Student's t with L - 1 degrees of freedom

with S^2 the variance of r between launches. It covers as often as it says, whatever share of the variance lies between
launches or within, as long as r is about normal. W is the mean variance of r within a launch, from resampled blocks of
steps, and c = (0.75 / t)^2, t at 95 %. So a 95 % interval reaches at least three quarters of the steps' standard error
to each side, and is never almost nothing where launches agree by chance. A larger reach covers too often with two
launches.

Percentiles of a hierarchical bootstrap, which draws launches and then steps in them, are not used. Resampling
understates the variance of L launches by (L - 1) / L, and with few launches its percentiles do not reach out as far as
t does. Of simulated studies whose launches differ by 3 %, its 95 % intervals held the true ratio in about 79 % with two
launches and 88 % with three, those here in 95 % (`python -m experiments.benchmarks.simulated_studies`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import stats

Array = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int64]
Statistic = Literal["mean"] | float  # or a quantile, as 0.95 for P95

DRAWS = 200  # resamples: they give the variance within a launch to about 10 %, and only c times it is used
REACH = 0.75  # standard errors of the steps that a 95 % interval reaches at least
MIN_LAUNCHES, MIN_STEPS, MIN_BEYOND = 2, 8, 5
# of "differs" on A/A: below 5 %, so that chance seldom takes more than 5 % of some 200 pages; at 3 % in 4 of 100 times,
# at 5 % in 42
LEVEL, FLOOR_LEVEL = 0.05, 0.03


@dataclass(frozen=True, eq=False)
class Pairs:
    """An arm and its baseline in the same steps of one launch.

    Attributes:
        x: seconds of the arm, (steps,).
        y: seconds of its baseline, (steps,).
        work_x: work of the arm in each step, as real tokens; None where both did the same.
        work_y: work of the baseline.
    """

    x: Array
    y: Array
    work_x: Array | None = None
    work_y: Array | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for columns that are no pairs."""
        if (self.work_x is None) != (self.work_y is None):
            raise ValueError("work of one arm alone: give that of both, or of neither where both did the same")
        columns = {"x": self.x, "y": self.y, "work_x": self.work_x, "work_y": self.work_y}
        for name, column in columns.items():
            if column is None:
                continue
            if column.shape != self.x.shape or column.ndim != 1 or not column.size:
                raise ValueError(
                    f"{name} {column.shape}, x {self.x.shape}: must be (steps,), the same steps of both arms"
                )
            wrong = column[~(np.isfinite(column) & (column > 0))]
            if wrong.size:
                raise ValueError(f"{name} {wrong[0]}: must be finite and above 0; drop the step from both arms")

    def log_ratios(self, steps: Steps, statistic: Statistic = "mean") -> Array:
        """Return the logs of the ratios over these steps: (draws, steps) -> (draws,)."""
        over, under = ((self.x, self.work_x), (self.y, self.work_y))
        return _log_level(*over, steps, statistic) - _log_level(*under, steps, statistic)

    def log_ratio(self, statistic: Statistic = "mean") -> float:
        """Return log((sum x / sum work_x) / (sum y / sum work_y)), or of quantiles of x / work_x and y / work_y."""
        return float(self.log_ratios(np.arange(len(self.x)), statistic))

    def variance(self, rng: np.random.Generator, statistic: Statistic = "mean") -> float:
        """Return the variance of ``log_ratio`` that the steps show, by resampled blocks of them."""
        shares = _deviations(self.x, self.work_x) - _deviations(self.y, self.work_y)
        return float(self.log_ratios(resampled(len(self.x), block_length(shares), rng), statistic).var())


def _log_level(times: Array, work: Array | None, steps: Steps, statistic: Statistic) -> Array:
    """Return the log of the mean, or of a quantile, of seconds per work over the last axis of ``steps``."""
    if statistic == "mean":
        per = 1.0 if work is None else work[steps].mean(axis=-1)
        return np.log(times[steps].mean(axis=-1) / per)
    each = times if work is None else times / work
    # numpy's own method puts P95 of 40 steps at their P93
    return np.log(np.quantile(each[steps], statistic, axis=-1, method="median_unbiased"))


def _deviations(times: Array, work: Array | None) -> Array:
    """Return each step's share of the time less its share of the work: the log of the mean follows their sum."""
    return times / times.sum() - (1 / len(times) if work is None else work / work.sum())


@dataclass(frozen=True)
class Ratio:
    """A ratio of times with its interval; the limits are NaN where there is none, and ``reason`` says why.

    Attributes:
        value: the geometric mean over launches, below 1 where the arm is faster.
        low: the lower limit.
        high: the upper limit.
        error: the standard error of the ratio's log.
        freedom: degrees of freedom of Student's t.
        reason: the cause of a missing interval, else empty.
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    error: float = math.nan
    freedom: float = math.nan
    reason: str = ""

    def as_row(self) -> dict[str, float | None]:
        """Return ``{"ratio", "low", "high"}`` as a file holds them: null for what is not there.

        >>> Ratio(0.5, reason="1 launch").as_row()
        {'ratio': 0.5, 'low': None, 'high': None}
        """
        values = {"ratio": self.value, "low": self.low, "high": self.high}
        return {name: value if math.isfinite(value) else None for name, value in values.items()}

    def p(self, null: float = 1.0) -> float:
        """Return the two-sided p-value of the ratio ``null``; NaN without an interval.

        >>> round(Ratio(2.0, error=0.1, freedom=20).p(2.0), 3)
        1.0
        """
        return 2 * self.tail(abs(math.log(self.value / null)))

    def tail(self, distance: float) -> float:
        """Return the probability that the error of the ratio's log is larger than ``distance``."""
        if self.error == 0:  # times that do not vary
            return 0.5 - 0.5 * float(np.sign(distance))
        return float(stats.t.sf(distance / self.error, self.freedom))


def from_interval(value: float, low: float, high: float, launches: int) -> Ratio:
    """Return the ratio of so many launches, at least 2, that has these 95 % limits.

    >>> round(from_interval(2.0, 1.0, 4.0, 5).p(1.0), 3)
    0.05
    """
    freedom = launches - 1
    error = math.log(high / low) / 2 / _student(0.95, freedom)
    return Ratio(value, low, high, error, freedom)


def ratio(
    launches: Sequence[Pairs], rng: np.random.Generator, *, statistic: Statistic = "mean", confidence: float = 0.95
) -> Ratio:
    """Return the ratio of means, or of quantiles, of an arm over its baseline: geometric mean over launches.

    No interval for one launch, for one of fewer than 8 steps, and for a quantile with fewer than 5 steps beyond it in
    all, or fewer than 1 in a launch. Raises ValueError for a quantile outside 0 to 1.
    """
    if statistic != "mean" and not 0 < statistic < 1:
        raise ValueError(f"statistic {statistic!r}: must be 'mean', or a quantile above 0 and below 1, as 0.95")
    logs = np.array([each.log_ratio(statistic) for each in launches])
    value = math.exp(logs.mean()) if launches else math.nan
    if reason := _too_few([len(each.x) for each in launches], statistic):
        return Ratio(value, reason=reason)
    count, freedom = len(launches), len(launches) - 1
    within = float(np.mean([each.variance(rng, statistic) for each in launches]))
    share = (REACH / _student(0.95, freedom)) ** 2
    error = math.sqrt(max(float(logs.var(ddof=1)), share * within) / count)
    reach = math.exp(_student(confidence, freedom) * error)
    return Ratio(value, value / reach, value * reach, error, freedom)


@cache
def _student(confidence: float, freedom: int) -> float:
    """Return how many standard errors an interval reaches to each side."""
    return float(stats.t.ppf((1 + confidence) / 2, freedom))


def _too_few(steps: Sequence[int], statistic: Statistic) -> str:
    """Return why launches of so many steps give no interval; empty where they do."""
    if len(steps) < MIN_LAUNCHES:
        return f"{len(steps)} launch{'' if len(steps) == 1 else 'es'}, at least {MIN_LAUNCHES} are needed"
    if min(steps) < MIN_STEPS:
        return f"{min(steps)} steps in a launch, at least {MIN_STEPS} are needed"
    if statistic == "mean":
        return ""
    beyond = _beyond(statistic)
    if sum(steps) * beyond < MIN_BEYOND or min(steps) * beyond < 1:
        needed = steps_needed(len(steps), statistic)
        return f"P{100 * statistic:g} of {min(steps)} steps a launch, at least {needed} are needed"
    return ""


def steps_needed(launches: int, quantile: float) -> int:
    """Return the steps that each of so many launches must have for an interval of a quantile.

    >>> steps_needed(3, 0.95), steps_needed(3, 0.99)
    (34, 167)
    """
    return math.ceil(max(MIN_BEYOND / _beyond(quantile) / launches, 1 / _beyond(quantile), MIN_STEPS))


def _beyond(quantile: float) -> float:
    """Return the share of steps beyond a quantile, on its shorter side."""
    return round(min(quantile, 1 - quantile), 12)  # 1 - 0.9 is below 0.1


def value_interval(
    launches: Sequence[Array], rng: np.random.Generator, *, statistic: Statistic = 0.95
) -> tuple[float, float, float]:
    """Return a quantile, or the mean, of one arm's times with its interval: (value, low, high), as ``ratio`` does.

    ``launches``: seconds of the arm's steps, (steps,) each. The limits are NaN where ``ratio`` would have no interval.
    """
    over_one = ratio([Pairs(x, np.ones(len(x))) for x in launches], rng, statistic=statistic)
    return over_one.value, over_one.low, over_one.high


def spread_interval(values: Array) -> tuple[float, float, float]:
    """Return the mean of independent values, (n,), with Student's 95 % interval: (mean, low, high); n is 2 or more.

    >>> [round(each, 2) for each in spread_interval(np.array([1.0, 2.0, 3.0]))]
    [2.0, -0.48, 4.48]
    """
    mean, error = float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values))
    reach = _student(0.95, len(values) - 1) * error
    return mean, mean - reach, mean + reach


def autocorrelation(values: Array) -> float:
    """Return the correlation of neighbours in a series, (steps,); 0 where it does not vary.

    >>> round(autocorrelation(np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])), 2)
    0.5
    """
    centred = values - values.mean()
    squares = float(centred @ centred)
    return float(centred[1:] @ centred[:-1]) / squares if squares else 0.0


def effective_size(values: Array) -> float:
    """Return how many independent steps tell as much of the mean as these, by an autoregression of order 1."""
    rho = autocorrelation(values)
    return len(values) * (1 - rho) / (1 + rho)


def block_length(values: Array) -> int:
    """Return how many neighbouring steps to resample together: Andrews' rule for Bartlett's window, at most a quarter.

    Source: Andrews (1991), Econometrica 59, for an autoregression of order 1; Kuensch (1989), Annals of Statistics 17.
    """
    rho = min(abs(autocorrelation(values)), 0.97)
    alpha = 4 * rho**2 / ((1 - rho) ** 2 * (1 + rho) ** 2)
    return int(np.clip(math.ceil(1.1447 * (alpha * len(values)) ** (1 / 3)), 1, max(1, len(values) // 4)))


def resampled(steps: int, block: int, rng: np.random.Generator, draws: int = DRAWS) -> Steps:
    """Return the steps of moving-block resamples, (draws, steps): blocks begin anywhere and go round at the end."""
    blocks = (np.arange(steps)[:, None] + np.arange(block)) % steps  # (steps, block): the one that begins at each step
    starts = rng.integers(steps, size=(draws, -(-steps // block)))
    return blocks.take(starts, axis=0).reshape(draws, -1)[:, :steps]


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number: of families without any effect, one in 20 has a p-value below 0.05.

    Source: Holm (1979), Scandinavian Journal of Statistics 6.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    values = np.array(p_values, dtype=np.float64)
    order = np.argsort(values)
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(1, np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1)))
    return adjusted.tolist()


def equivalence_p(measured: Ratio, margin: float) -> float:
    """Return the p-value of "the ratio is off by ``margin`` or more", by two one-sided tests; 0.02 for 2 %.

    Source: Schuirmann (1987), Journal of Pharmacokinetics and Biopharmaceutics 15.
    """
    limit, log = math.log1p(margin), math.log(measured.value)
    return max(measured.tail(limit - log), measured.tail(limit + log))


def verdicts(measured: Sequence[tuple[Ratio, Ratio]], margin: float | None = None) -> list[str]:
    """Return a verdict on each ratio of times of one page.

    "faster" or "slower": Holm's p-value over all ratios of the page is below 0.05, and the ratio is farther from 1
    than the farther limit of its floor. "the same within m %": two one-sided tests at a margin that was stated
    beforehand, each at 0.05, and the floor's own interval lies within the margin. Else "not told apart from A/A",
    or "no interval: " and why, or "no interval of A/A: " and why where only the floor has none.
    ``measured``: each ratio, arm over baseline, with the floor of its setting: the baseline over itself (A/A).

    Raises ValueError for a margin outside 0 to 1.
    """
    if margin is not None and not 0 < margin < 1:
        raise ValueError(f"margin {margin}: must be above 0 and below 1, as 0.02 for 2 %")
    adjusted = iter(holm([each.p() for each, floor in measured if not each.reason and not floor.reason]))
    words = []
    for each, floor in measured:
        if each.reason or floor.reason:
            words.append(f"no interval: {each.reason}" if each.reason else f"no interval of A/A: {floor.reason}")
        else:
            words.append(_verdict(each, floor, next(adjusted) < LEVEL, margin))
    return words


def _verdict(measured: Ratio, floor: Ratio, significant: bool, margin: float | None) -> str:
    log, reach = math.log(measured.value), max(-math.log(floor.low), math.log(floor.high))
    if significant and abs(log) > reach:
        return "faster" if log < 0 else "slower"
    if margin is not None and reach <= math.log1p(margin) and equivalence_p(measured, margin) < LEVEL:
        return f"the same within {100 * margin:g} %"
    return "not told apart from A/A"


def floor_verdicts(floors: Sequence[Ratio]) -> list[str]:
    """Return of each A/A pair of one page whether it, which must be alike, "differs" or is "not told apart".

    "differs": Holm's p-value over all A/A pairs of the page is below ``FLOOR_LEVEL``. Where they differ, the study
    measures something besides the arms, and its other verdicts mean little.
    """
    adjusted = iter(holm([each.p() for each in floors if not each.reason]))
    return [
        f"no interval: {each.reason}"
        if each.reason
        else "differs"
        if next(adjusted) < FLOOR_LEVEL
        else "not told apart"
        for each in floors
    ]
