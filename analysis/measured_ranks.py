"""Yardsticks of real runs by world size, to stand on the lines of planned ones."""

from collections.abc import Sequence

import pandas as pd

from analysis.metrics import per_step, yardstick
from analysis.settings import AA, Setting


def measured_ranks(settings: Sequence[Setting]) -> pd.DataFrame:
    """Return a row per arm and setting: ``arm``, ``world_size``, ``per_rank``, ``yardstick`` and ``step_s``.

    The last two are means over its runs; ``per_rank`` is B / G, which should be that of the planned lines.
    """
    rows = []
    for setting in settings:
        for arm, runs in setting.arms.items():
            steps = [per_step(run.records) for run in runs]
            rows += [
                {
                    "arm": arm,
                    "world_size": int(runs[0].config["world_size"]),
                    "per_rank": int(runs[0].config["global_batch"]) / int(runs[0].config["world_size"]),
                    "yardstick": sum(map(yardstick, steps)) / len(steps),
                    "step_s": sum(float(each["step_s"].mean()) for each in steps) / len(steps),
                }
            ]
    return pd.DataFrame([row for row in rows if row["arm"] != AA])
