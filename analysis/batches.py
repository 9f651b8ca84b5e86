"""Padding, balance between ranks, batch size and order bias of a run's steps.

All figures are ratios of sums over steps, so that a step counts by its size: means
over steps would not compare arms whose steps differ in size.
"""

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.metrics import warmup_steps

Array = npt.NDArray[np.float64]
SUMS = ("num_samples", "num_tokens", "squared_tokens")  # of lengths to the powers 0, 1 and 2


def batches(steps: pd.DataFrame) -> dict[str, float]:
    """Return the figures of one run's ``metrics.per_step`` table; what was not measured is NaN."""
    timed = steps.iloc[warmup_steps(len(steps)) :]
    sizes = steps["num_samples"].astype("float64")
    full = sizes[steps["epoch"].eq(steps["epoch"].shift(-1))]  # an epoch's last step holds what is left
    if full.empty:
        full = sizes
    return {
        "padding": 1 - steps["num_tokens"].sum() / steps["padded_tokens"].sum(),
        "imbalance_tokens": steps["max_padded_tokens"].sum() / steps["mean_padded_tokens"].sum(),
        "imbalance_compute": _sum(timed["max_compute_s"]) / _sum(timed["mean_compute_s"]),
        "batch_mean": sizes.mean(),
        "batch_cv": full.std(ddof=0) / full.mean(),
        "order_bias": order_bias(*(steps[name].to_numpy(dtype="float64") for name in SUMS)),
    }


def _sum(column: pd.Series) -> float:
    return float(column.sum(min_count=1))


def order_bias(sizes: Array, sums: Array, squares: Array) -> float:
    """Return the intra-class correlation of length in global batches: about 0 if shuffled, 1 if steps have one length.

    ``sizes``, ``sums``, ``squares``: (steps,), the count, sum and sum of squares of the lengths in each step.
    ICC(1) of a one-way analysis of variance, (MSB - MSW) / (MSB + (n0 - 1) MSW), where MSB and MSW are the mean
    squares between and within steps and n0 the mean size, corrected for its spread; it may fall a little below 0.
    Source: Donner (1986), International Statistical Review 54.
    """
    total, steps = sizes.sum(), len(sizes)
    if steps < 2 or total <= steps or not np.isfinite(squares).all():
        return float("nan")
    within_sums = float((sums**2 / sizes).sum())
    msb = (within_sums - float(sums.sum()) ** 2 / total) / (steps - 1)
    msw = (float(squares.sum()) - within_sums) / (total - steps)
    n0 = (total - float((sizes**2).sum()) / total) / (steps - 1)
    return float((msb - msw) / (msb + (n0 - 1) * msw)) if msb or msw else 0.0
