"""Fits by relative error: the time model and the memory model of measured micro-batches.

Both are linear programs in coefficients that are not negative, so neither model
falls with count or length.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from ddpsched.costs.cost_model import CostModel
from ddpsched.costs.memory_model import MemoryModel
from ddpsched.errors import DataError

Float = npt.NDArray[np.float64]

FLOOR_GAIN = 0.8  # a floor is kept where it leaves at most this share of the error


def least_relative(design: Float, measured: Float, from_above: bool = False) -> Float:
    """The c >= 0 that minimise the mean of ``|design @ c - measured| / measured``.

    ``design``: (points, coefficients), ``measured``: (points,), positive ->
    (coefficients,). With ``from_above`` among those c that lie above every point.
    Unlike least squares, a few disturbed points do not pull the rest along.
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
    below, above = np.hstack([rows, -apart]), np.hstack([-rows, 0 * apart if from_above else -apart])
    found = linprog(
        np.concatenate([np.zeros(unknowns), np.full(points, 1 / points)]),
        A_ub=np.vstack([below, above]),
        b_ub=np.concatenate([np.ones(points), -np.ones(points)]),
        bounds=(0, None),
    )
    if found.status != 0:
        raise DataError(f"no fit of {points} measured points: {found.message}")
    return found.x[:unknowns] / norm


def fit_time(count: Any, length: Any, seconds: Any) -> CostModel:
    """Seconds of micro-batches: max(floor, alpha + count * (delta + beta*L + gamma*L**2)).

    Arguments: equal-length arrays, one entry a measured (count, length). For every
    number of quickest points that could lie on a floor the others are fitted without
    it, and the best of all is taken; no floor, unless one leaves clearly less error.
    Raises DataError for fewer than 6 points or times that are not positive.
    """
    count, length, seconds = _checked(count, length, seconds, "times")
    design = _design(count, length)
    order = np.argsort(seconds, kind="stable")
    plain = least_relative(design, seconds)
    best, floor = plain, 0.0
    least = FLOOR_GAIN * _error(design @ plain, seconds)
    for quick in range(3, len(seconds) - 4):
        lowest = float(least_relative(np.ones((quick, 1)), seconds[order[:quick]])[0])
        found = least_relative(design[order[quick:]], seconds[order[quick:]])
        error = _error(np.maximum(lowest, design @ found), seconds)
        if error < least:
            best, floor, least = found, lowest, error
    alpha, delta, beta, gamma = map(float, best)
    return CostModel(alpha, beta, gamma, delta=delta, floor=floor)


def fit_memory(count: Any, length: Any, peak_bytes: Any) -> MemoryModel:
    """Peak bytes of micro-batches: the model nearest to the points of all that lie above every one of them.

    Raises DataError for fewer than 6 points or peaks that are not positive.
    """
    count, length, peak_bytes = _checked(count, length, peak_bytes, "peaks")
    return MemoryModel(*map(float, least_relative(_design(count, length), peak_bytes, from_above=True)))


def _design(count: Float, length: Float) -> Float:
    return np.stack([np.ones_like(count), count, count * length, count * length**2], axis=1)  # (points, 4)


def _error(predicted: Float, measured: Float) -> float:
    return float((np.abs(predicted - measured) / measured).mean())


def _checked(count: Any, length: Any, measured: Any, name: str) -> tuple[Float, Float, Float]:
    count, length, measured = (np.asarray(a, dtype=np.float64) for a in (count, length, measured))
    if len(measured) < 6:
        raise DataError(
            f"{len(measured)} measured points: a fit needs at least 6 {name}; raise global_batch or data.max_length"
        )
    if not (np.isfinite(measured).all() and (measured > 0).all()):
        raise DataError(f"measured {name} must be positive and finite")
    return count, length, measured
