"""Speed of each arm beside its price: order bias of the steps, and peak memory."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis.batches import SUMS, order_bias
from analysis.settings import AA, Setting
from analysis.speeds import speeds


def tradeoffs(setting: Setting, table: Mapping[str, Any]) -> pd.DataFrame:
    """Return a row per arm of ``speeds.speeds``, with its ``order_bias`` and ``peak_bytes`` beside the speed.

    ``table``: the setting's of ``tables.study_tables``. Both are means over runs, NaN where not measured; the peak is
    of the rank and step that needed most, and NaN where arms took turns in one process, as it is then of all of them.
    """
    rows = []
    for arm, runs in setting.arms.items():
        steps = [run.steps for run in runs]
        bias = [order_bias(*(each[name].to_numpy(dtype="float64") for name in SUMS)) for each in steps]
        peak = [math.nan if setting.took_turns else each["max_peak_memory_bytes"].max() for each in steps]
        rows.append({"arm": arm, "order_bias": pd.Series(bias).mean(), "peak_bytes": pd.Series(peak).mean()})
    found = speeds(table)
    return found[found["arm"] != AA].merge(pd.DataFrame(rows), on="arm", how="left")
