"""Loads of real runs' ranks by step, as plans give them too."""

from collections.abc import Mapping

import pandas as pd


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
