"""Numbers of a measured setting as rows ``{"ratio", "low", "high", ...}``, whose intervals are of its launches."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from analysis.load import Run
from analysis.metrics import warmup_steps
from analysis.ratios import compare, pairs, refused
from analysis.settings import AA, couples
from analysis.stats import MIN_LAUNCHES, Ratio, from_interval, ratio, spread_interval, verdicts
from analysis.step_parts import PARTS
from analysis.style import STRONGEST
from report.results import Measured

Row = dict[str, Any]
# arms, each with that of another package that it is held against
STRONGEST_PAIRS = (("balanced", STRONGEST), ("packed", STRONGEST))
RIVALS = (("packed", "flattening"), ("packed", "karmarkar_karp"))
NEARLY = 1 - 1e-9  # of a correlation, whose z is finite


def arms(measured: Measured) -> list[str]:
    """Return the labels of the arms beside the baseline, without its second run."""
    return [arm for arm in measured.setting.arms if arm not in (measured.table["baseline"], AA)]


def each_once(found: Iterable[Measured]) -> list[tuple[Measured, str]]:
    """Return the arms of several studies, each with the first study that has it."""
    first: dict[str, Measured] = {}
    for each in found:
        for arm in arms(each):
            first.setdefault(arm, each)
    return [(each, arm) for arm, each in first.items()]


def time(measured: Measured, arm: str, column: str = "step_s") -> Row:
    """Return an arm's time over the baseline's, with its verdict; empty where there is none."""
    return row_of(measured.table, arm, measured.table["baseline"], column)


def row_of(table: Mapping[str, Any], arm: str, baseline: str, column: str) -> Row:
    """Return the row of a table's ratios; empty where there is none."""
    wanted = (arm, baseline, column)
    rows: list[Row] = table["ratios"]
    return next((row for row in rows if (row["arm"], row["baseline"], row["column"]) == wanted), {})


def beside_floor(table: Mapping[str, Any], arm: str, baseline: str, column: str) -> Row:
    """Return the row of a table's ratios, named as within A/A's where its interval is not beyond that."""
    row, floor = row_of(table, arm, baseline, column), row_of(table, AA, baseline, column)
    known = row.get("verdict") or floor.get("low") is None or beyond(row, floor)
    return row if known else row | {"verdict": "not told apart from A/A"}


def speed(measured: Measured, arm: str) -> Row:
    """Return an arm's throughput over the baseline's: the inverse of the time."""
    row = time(measured, arm)
    ends = {"ratio": "ratio", "low": "high", "high": "low"}  # the limits change places
    return row | {name: 1 / row[other] if row.get(other) else None for name, other in ends.items()}


def p95(measured: Measured, arm: str) -> Row:
    """Return the P95 of an arm's step times over the baseline's."""
    row = time(measured, arm)
    return {name: row.get(f"p95_{name}") for name in ("ratio", "low", "high")} | _launches(row.get("num_launches"))


def peak(measured: Measured, arm: str) -> Row:
    """Return an arm's peak memory, of the rank and step that need most, over the baseline's in the same launch."""
    mine, base = (_by_launch(measured, each, "memory_max_bytes") for each in (arm, measured.table["baseline"]))
    logs = [math.log(mine[each] / base[each]) for each in mine if base.get(each) and mine[each]]
    return ratio_over_launches(logs) | _launches(len(logs))


def tracking(measured: Measured, arm: str, column: str = "cost_time_r") -> Row:
    """Return the mean over launches of how well an arm's predicted costs tell times; ``heaviest_share`` is another.

    Correlations are averaged by Fisher's z; a share's interval ends at 0 and 1.
    """
    values = _known(measured, arm, column)
    if column == "cost_time_r":
        z = over_launches(np.arctanh(np.clip(values, -NEARLY, NEARLY)).tolist())
        return {name: None if value is None else math.tanh(value) for name, value in z.items()}
    return {name: None if value is None else min(max(value, 0.0), 1.0) for name, value in over_launches(values).items()}


def mean(measured: Measured, arm: str, column: str) -> Row:
    """Return the mean over launches of one of an arm's numbers, as plan_wait_share, with its interval."""
    return over_launches(_known(measured, arm, column))


def over_launches(values: Sequence[float]) -> Row:
    """Return the mean of each launch's number, with Student's 95 % interval; without it where launches are too few."""
    if not len(values):
        return {"ratio": None, "low": None, "high": None}
    if len(values) < MIN_LAUNCHES:
        return {"ratio": float(np.mean(values)), "low": None, "high": None}
    return dict(zip(("ratio", "low", "high"), spread_interval(np.array(values)), strict=True))


def ratio_over_launches(logs: Sequence[float]) -> Row:
    """Return the geometric mean of each launch's ratio, given by its log, as ``over_launches`` does."""
    return {name: None if value is None else math.exp(value) for name, value in over_launches(logs).items()}


def _by_launch(measured: Measured, arm: str, column: str) -> dict[Any, Any]:
    """Return a column of an arm's runs by launch and seed, of which a launch has one observation."""
    values = {row["run"]: row[column] for row in measured.table["runs"]}
    return {run.observation: values[run.name] for run in reversed(measured.setting.arms.get(arm, []))}


def _known(measured: Measured, arm: str, column: str) -> list[float]:
    return [each for each in _by_launch(measured, arm, column).values() if each is not None]


def against(measured: Measured, arm: str, other: str, column: str = "step_s") -> Row:
    """Return an arm's time over another arm's, whichever that is."""
    if not {arm, other} <= measured.setting.arms.keys():
        return {}
    found = compare(measured.setting, arm, other, column, np.random.default_rng(0))
    return found.row() | found.ratio.as_row()


def within(measured: Measured, arm: str, steps: range, column: str = "step_s", baseline: str | None = None) -> Row:
    """Return an arm's time over another's, by default the baseline's, in some of the steps.

    The run's first steps, in which caches fill, are left out, and the first of these steps. Empty where times of the
    two are not compared.
    """

    def part(run: Run) -> Any:
        return run.steps.loc[max(steps.start, warmup_steps(len(run.steps))) : steps.stop - 1]

    base = measured.setting.arms[baseline or measured.table["baseline"]]
    both = couples(measured.setting.arms[arm], base)
    if refused(measured.setting, both):
        return {}
    found = [each for mine, other in both if (each := pairs(part(mine), part(other), column)) is not None]
    return ratio(found, np.random.default_rng(0)).as_row() | _launches(len(found))


def _launches(count: int | None) -> Row:
    return {"num_launches": count}


def told_apart(family: Sequence[tuple[Row, Row]]) -> list[bool]:
    """Return whether each ratio of a family is told apart from its floor, A/A, by the rule of ``stats.verdicts``.

    Holm's p-value over the family is below 0.05, and the ratio is farther from 1 than the floor's farther limit. False
    where either has no interval.
    """
    words = verdicts([(_ratio(row), _ratio(floor)) for row, floor in family])
    return [word in ("faster", "slower") for word in words]


def _ratio(row: Row) -> Ratio:
    if row.get("low") is None or not row.get("num_launches"):
        return Ratio(math.nan, reason="no interval")
    return from_interval(row["ratio"], row["low"], row["high"], row["num_launches"])


def beyond(row: Row, floor: Row) -> bool:
    """Return whether a ratio's interval lies beyond A/A's, on one side; False where either has none."""
    if row.get("low") is None or floor.get("low") is None:
        return False
    reach = max(1 / floor["low"], floor["high"])
    return bool(row["low"] > reach or row["high"] < 1 / reach)


def shares(measured: Measured) -> dict[str, dict[str, float]]:
    """Return the parts of each arm's mean step over the baseline's, ``{"static": {"padding": 0.3, ...}}``."""
    table = measured.parts.set_index("arm")
    base = table["step_s"].get(measured.table["baseline"], np.nan)
    return {
        str(arm): {part.removesuffix("_s"): float(row[part] / base) for part in PARTS} for arm, row in table.iterrows()
    }


MEASURES: tuple[Callable[..., Any], ...] = (arms, time, speed, p95, peak, tracking, against, within, shares)
