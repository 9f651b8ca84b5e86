"""Yardsticks of real runs by world size, and loads of their ranks by step, as plans give them too."""

from collections.abc import Mapping, Sequence

import pandas as pd

from analysis.metrics import yardstick
from analysis.settings import AA, Setting


def measured_ranks(settings: Sequence[Setting]) -> pd.DataFrame:
    """Return a row per arm and setting: ``arm``, ``world_size``, ``per_rank``, ``yardstick`` and ``step_s``.

    The last two are means over its runs; ``per_rank`` is B / G, which should be that of the planned lines.
    """
    rows = []
    for setting in settings:
        for arm, runs in setting.arms.items():
            steps = [run.steps for run in runs]
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


def measured_loads(steps: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the rows ``arm``, ``step``, ``load`` and ``step_s`` of ``metrics.per_step`` tables by arm.

    ``load`` is the largest rank's padded tokens over an even share of the step's real ones.
    """
    tables = [
        pd.DataFrame(
            {
                "arm": arm,
                "step": table.index,
                "load": (table["max_padded_tokens"] / (table["num_tokens"] / table["world_size"])).to_numpy(),
                "step_s": table["step_s"].to_numpy(),
            }
        )
        for arm, table in steps.items()
    ]
    return pd.concat(tables, ignore_index=True)
