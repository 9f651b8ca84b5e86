"""Fits of measured times and memory by relative error: the cost of recorded steps, and a calibration's two models.

All coefficients are at least 0, so no model falls with count or length.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ddpsched.costs.cost_model import CostModel
from ddpsched.costs.memory_cap import MemoryModel
from ddpsched.errors import DataError
from ddpsched.records import write_json

Float = npt.NDArray[np.float64]

LARGER_GRID = "raise global_batch or data.max_length"  # the remedy for too few points of a calibration
SMALLEST = 1e-9  # seconds; bytes are larger by far
FLOOR_GAIN = 0.8  # a floor is kept where it leaves at most this share of the error


@dataclass(frozen=True)
class Fit:
    """An affine-quadratic model fitted to measured times, and the quality of the fit."""

    model: CostModel
    num_points: int
    mean_relative_error: float  # mean of |predicted - measured| / measured
    rms_residual_s: float
    r_squared: float

    def save(self, path: Path) -> None:
        """Write the JSON file that ``cost.path`` of a config names."""
        residuals = asdict(self)
        model = residuals.pop("model")
        seconds = {name: model[name] for name in ("alpha", "beta", "gamma")}
        write_json(path, {"kind": "affine_quadratic", **seconds, "residuals": residuals})


def fit_affine_quadratic(count: Any, max_length: Any, seconds: Any) -> Fit:
    """Fit measured seconds by non-negative least squares on (1, count*L, count*L**2).

    Arguments: equal-length arrays, one entry a measured micro-batch. Errors are weighted by 1/seconds, so that small
    batches count as much as large ones. Raises DataError for fewer than 3 points or times that are not positive.
    Source: Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23.
    """
    from scipy.optimize import nnls

    count, length, seconds = _checked(count, max_length, seconds, "times", 3, "record more steps")
    design = np.delete(_design(count, length), 1, axis=1)
    rows = design / seconds[:, None]
    norm = np.linalg.norm(rows, axis=0)
    coefficients = nnls(rows / norm, np.ones_like(seconds))[0] / norm
    predicted = design @ coefficients
    squares, spread = float(((predicted - seconds) ** 2).sum()), float(((seconds - seconds.mean()) ** 2).sum())
    return Fit(
        model=CostModel(*map(float, coefficients)),
        num_points=len(seconds),
        mean_relative_error=_error(predicted, seconds),
        rms_residual_s=(squares / len(seconds)) ** 0.5,
        r_squared=1 - squares / spread if spread else float("nan"),
    )


def fit_records(rows: Sequence[Mapping[str, Any]]) -> Fit:
    """Fit the records of a run, those of one micro-batch whose compute time was measured. Raises DataError for none."""
    used = [r for r in rows if r["num_microbatches"] == 1 and r["compute_s"] is not None and r["mode"] != "simulated"]
    if not used:
        raise DataError("no record holds a measured compute_s of one micro-batch; fit a distributed or virtual run")
    return fit_affine_quadratic(*([row[key] for row in used] for key in ("num_samples", "max_length", "compute_s")))


def least_relative(design: Float, measured: Float, from_above: bool = False) -> Float:
    """Return the c >= 0 that minimise the mean of ``|design @ c - measured| / measured``.

    ``design``: (points, coefficients), ``measured``: (points,), positive -> (coefficients,). With ``from_above``, only
    c for which no point lies above the fit. Unlike least squares, a few disturbed points do not shift the rest.
    Raises DataError where there is no such fit.
    Source: Wagner, Linear programming techniques for regression analysis (1959).
    """
    from scipy.optimize import linprog

    points, unknowns = design.shape
    rows = design / measured[:, None]
    norm = np.linalg.norm(rows, axis=0)
    norm[norm == 0] = 1.0
    rows = rows / norm
    # unknowns: c, then each point's error e >= |rows @ c - 1|
    apart = np.eye(points)
    constraints = np.block([[rows, -apart], [-rows, 0 * apart if from_above else -apart]])
    objective = np.repeat([0, 1 / points], [unknowns, points])
    solution = linprog(objective, constraints, np.repeat([1.0, -1.0], points), bounds=(0, None))
    if solution.status != 0:
        raise DataError(f"no fit of {points} measured points: {solution.message}")
    return solution.x[:unknowns] / norm


def fit_time(count: Any, length: Any, seconds: Any) -> CostModel:
    """Fit the seconds of micro-batches: max(floor, alpha + count * (delta + beta*L + gamma*L**2)).

    Arguments: equal-length arrays, one entry a measured (count, length). For every number of quickest points that could
    lie on a floor the others are fitted without it, and the best fit is returned; one with a floor only if its error is
    clearly lower. Raises DataError for fewer than 6 points or times that are not positive.
    """
    count, length, seconds = _checked(count, length, seconds, "times")
    design = _design(count, length)
    order = np.argsort(seconds, kind="stable")
    best, floor = least_relative(design, seconds), 0.0
    least = FLOOR_GAIN * _error(design @ best, seconds)
    for quick in range(3, len(seconds) - 4):
        lowest = float(least_relative(np.ones((quick, 1)), seconds[order[:quick]])[0])
        coefficients = least_relative(design[order[quick:]], seconds[order[quick:]])
        error = _error(np.maximum(lowest, design @ coefficients), seconds)
        if error < least:
            best, floor, least = coefficients, lowest, error
    alpha, delta, beta, gamma = map(float, best)
    return CostModel(alpha, beta, gamma, delta=delta, floor=floor)


def fit_memory(count: Any, length: Any, peak_bytes: Any) -> MemoryModel:
    """Fit the peak bytes of micro-batches by the nearest model that lies below none of them.

    Raises DataError for fewer than 6 points or peaks that are not positive.
    """
    count, length, peak_bytes = _checked(count, length, peak_bytes, "peaks")
    return MemoryModel(*map(float, least_relative(_design(count, length), peak_bytes, from_above=True)))


def _design(count: Float, length: Float) -> Float:
    return np.stack([np.ones_like(count), count, count * length, count * length**2], axis=1)  # (points, 4)


def _error(predicted: Float, measured: Float) -> float:
    return float((np.abs(predicted - measured) / measured).mean())


def _checked(
    count: Any, length: Any, measured: Any, name: str, least: int = 6, remedy: str = LARGER_GRID
) -> tuple[Float, Float, Float]:
    count, length, measured = (np.asarray(a, dtype=np.float64) for a in (count, length, measured))
    if len(measured) < least:
        raise DataError(f"{len(measured)} measured points: a fit needs at least {least} {name}; {remedy}")
    if not (np.isfinite(measured).all() and (measured >= SMALLEST).all()):  # by less, errors would overflow
        fault = f"measured {name} must be finite and at least {SMALLEST:g}, one is {measured.min():g}"
        raise DataError(f"{fault}; leave out the points that are not")
    return count, length, measured
