"""How steadily a run trains: its gradient norms, and how far its loss rises again once it has fallen."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.curves import Curve, points
from analysis.metrics import warmup_steps

Array = npt.NDArray[np.float64]
KEYS = ("grad_norm", "grad_norm_cv", "grad_norm_peak", "loss_rise")


def stability(steps: pd.DataFrame, line: Curve | None, window: float) -> dict[str, float]:
    """The figures of one run's ``metrics.per_step`` table; what was not measured is NaN.

    ``grad_norm``: median over steps, before clipping; ``grad_norm_cv``: standard deviation over mean;
    ``grad_norm_peak``: the largest over the median. The first steps, in which a fresh head's gradients are large for
    every order, are left out. ``loss_rise``: see :func:`largest_rise`, of losses that are means over ``window``.
    """
    norms = steps["grad_norm"].astype("float64").iloc[warmup_steps(len(steps)) :].dropna()
    found = dict.fromkeys(KEYS, float("nan"))
    if len(norms) and norms.median():
        found["grad_norm"] = float(norms.median())
        found["grad_norm_cv"] = float(norms.std(ddof=0) / norms.mean())
        found["grad_norm_peak"] = float(norms.max() / norms.median())
    if line is not None:
        found["loss_rise"] = largest_rise(line.smoothed(points(line, window), window))
    return found


def largest_rise(losses: Array) -> float:
    """The largest loss over the least one before it; 1 where it only falls.

    Source: the loss ratio of Li, Zhang and He 2022, "The stability-efficiency dilemma".

    >>> largest_rise(np.array([4.0, 2.0, 3.0, 1.0, 1.2]))
    1.5
    """
    known = losses[np.isfinite(losses)]
    return float((known / np.minimum.accumulate(known)).max()) if len(known) else float("nan")
