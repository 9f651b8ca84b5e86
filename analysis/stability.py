"""Stability of training: the spread of gradient norms, and the largest rise of the loss after it has fallen."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.curves import Curve, points
from analysis.metrics import warmup_steps

Array = npt.NDArray[np.float64]
KEYS = ("grad_norm", "grad_norm_cv", "grad_norm_peak", "loss_rise")


def stability(steps: pd.DataFrame, line: Curve | None, window: float) -> dict[str, float]:
    """Return the figures of one run's ``metrics.per_step`` table; what was not measured is NaN.

    ``grad_norm``: median over steps, before clipping; ``grad_norm_cv``: standard deviation over mean;
    ``grad_norm_peak``: the largest over the median. The first steps, in which a new head's gradients are large for
    all orders, are left out. ``loss_rise``: see :func:`largest_rise`, of losses that are means over ``window``.
    """
    norms = steps["grad_norm"].astype("float64").iloc[warmup_steps(len(steps)) :].dropna()
    figures = dict.fromkeys(KEYS, float("nan"))
    if len(norms) and norms.median():
        figures["grad_norm"] = float(norms.median())
        figures["grad_norm_cv"] = float(norms.std(ddof=0) / norms.mean())
        figures["grad_norm_peak"] = float(norms.max() / norms.median())
    if line is not None:
        figures["loss_rise"] = largest_rise(line.smoothed(points(line, window), window))
    return figures


def largest_rise(losses: Array) -> float:
    """Return the largest ratio of a loss to the least one before it; 1 where the loss only falls.

    Source: the loss ratio of Li, Zhang and He 2022, "The stability-efficiency dilemma".

    >>> largest_rise(np.array([4.0, 2.0, 3.0, 1.0, 1.2]))
    1.5
    """
    known = losses[np.isfinite(losses)]
    return float((known / np.minimum.accumulate(known)).max()) if len(known) else float("nan")
