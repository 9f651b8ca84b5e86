"""Non-negative least squares of measured times: the coefficients of a cost in seconds."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ddpsched.costs.cost_model import CostModel
from ddpsched.errors import DataError


@dataclass(frozen=True)
class Fit:
    """An affine-quadratic model fitted to measured times, and how well it fits them."""

    model: CostModel
    num_points: int
    mean_relative_error: float  # mean of |predicted - measured| / measured
    rms_residual_s: float
    r_squared: float

    def save(self, path: Path) -> None:
        """Write JSON that ``cost.path`` of a config names."""
        residuals = {key: value for key, value in asdict(self).items() if key != "model"}
        seconds = {"alpha": self.model.alpha, "beta": self.model.beta, "gamma": self.model.gamma}
        text = json.dumps({"kind": "affine_quadratic", **seconds, "residuals": residuals}, indent=2)
        path.write_text(text + "\n", encoding="utf-8")


def fit_affine_quadratic(count: Any, max_length: Any, seconds: Any) -> Fit:
    """Non-negative least squares of measured seconds on (1, count*L, count*L**2).

    Arguments: equal-length arrays, one entry a measured micro-batch. Errors are
    weighted by 1/seconds, so that small batches count as much as large ones.
    Raises DataError for fewer than 3 points or times that are not positive.
    Source: Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23.
    """
    from scipy.optimize import nnls

    count, length, seconds = (np.asarray(a, dtype=np.float64) for a in (count, max_length, seconds))
    if len(seconds) < 3:
        raise DataError(f"{len(seconds)} measured points: a fit of three coefficients needs at least 3")
    if not (np.isfinite(seconds).all() and (seconds > 0).all()):
        raise DataError("measured times must be positive and finite; leave out the points that are not")
    design = np.stack([np.ones_like(count), count * length, count * length**2], axis=1)  # (points, 3)
    norm = np.linalg.norm(design / seconds[:, None], axis=0)
    coefficients = nnls(design / seconds[:, None] / norm, np.ones_like(seconds))[0] / norm
    predicted = design @ coefficients
    alpha, beta, gamma = map(float, coefficients)
    residual = predicted - seconds
    spread = float(((seconds - seconds.mean()) ** 2).sum())
    return Fit(
        model=CostModel(alpha, beta, gamma),
        num_points=len(seconds),
        mean_relative_error=float((np.abs(residual) / seconds).mean()),
        rms_residual_s=float(np.sqrt((residual**2).mean())),
        r_squared=1 - float((residual**2).sum()) / spread if spread else float("nan"),
    )


def fit_records(rows: Sequence[Mapping[str, Any]]) -> Fit:
    """Fit the rows of a run that ran one micro-batch and measured its compute time."""
    used = [r for r in rows if r["num_microbatches"] == 1 and r["compute_s"] is not None and r["mode"] != "simulated"]
    if not used:
        raise DataError("no record holds a measured compute_s of one micro-batch; fit a distributed or virtual run")
    return fit_affine_quadratic(
        [r["num_samples"] for r in used], [r["max_length"] for r in used], [r["compute_s"] for r in used]
    )
