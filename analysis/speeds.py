"""Throughput of a setting's arms over static's, with intervals of launches, and the A/A pair as the noise floor."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis.settings import AA
from analysis.style import STRONGEST

COLUMNS = ("arm", "samples_per_s", "speed", "low", "high", "verdict")
NOTHING = float("nan")


def speeds(table: Mapping[str, Any]) -> pd.DataFrame:
    """Return a row per arm: samples a second, and ``speed``, the baseline's step time over the arm's.

    ``table``: one setting of ``tables.study_tables``, or of a frozen ``tables.json``. ``low`` and ``high`` are of 95 %
    intervals over launches, NaN where there is none. The baseline comes first, with speed 1, then the strongest peer,
    then the others from slow to fast; of arms whose steps hold other samples the speed is that of real tokens. The A/A
    row, last, is the noise floor.
    """
    baseline = table["baseline"]
    ratios = {row["arm"]: row for row in table["ratios"] if (row["baseline"], row["column"]) == (baseline, "step_s")}
    rows = []
    for arm in table["arms"]:
        name = arm["arm"]
        row = {"ratio": 1.0, "low": 1.0, "high": 1.0} if name == baseline else ratios.get(name, {})
        speed, low, high = (_inverse(row.get(key)) for key in ("ratio", "high", "low"))  # the limits change places
        rows.append((name, _number(arm["samples_per_s"]), speed, low, high, row.get("verdict") or ""))
    found = pd.DataFrame(rows, columns=list(COLUMNS))
    places = [(_place(row["arm"], baseline), row["speed"]) for row in found.to_dict("records")]
    order = sorted(range(len(found)), key=lambda row: places[row])
    return found.iloc[order].reset_index(drop=True)


def _inverse(value: float | None) -> float:
    return 1 / value if value else NOTHING


def _number(value: float | None) -> float:
    return NOTHING if value is None else value


def _place(arm: str, baseline: str | None) -> int:
    return 0 if arm == baseline else 3 if arm == AA else 1 if arm == STRONGEST else 2


def floor(found: pd.DataFrame) -> tuple[float, float] | None:
    """Return the limits of the A/A pair's interval in a table of ``speeds``; None where it has none."""
    pair = found[found["arm"] == AA]
    if pair.empty or not np.isfinite(pair[["low", "high"]].to_numpy()).all():
        return None
    return float(pair["low"].iloc[0]), float(pair["high"].iloc[0])
