"""What a padded micro-batch of ``count`` samples, the longest ``max_length`` tokens long, costs.

A cost model is a function ``cost(count, max_length) -> int64`` over arrays that
broadcast; it falls neither with count nor with length. Costs are integers, so
that every rank finds the same plan:

====================== ============================================ =============
kind                   formula                                      unit
====================== ============================================ =============
padded_tokens          count * max_length                           tokens
padded_tokens_squared  (count * max_length)**2                      tokens squared
affine_quadratic       alpha + beta*count*max_length                nanoseconds
                       + gamma*count*max_length**2
====================== ============================================ =============
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ddpsched.config import CostConfig
from ddpsched.errors import ConfigError, DataError

Int = npt.NDArray[np.int64]
CostModel = Callable[[Any, Any], Int]

NANOSECONDS = 1e9


def padded_tokens(count: Any, max_length: Any) -> Int:
    """count * max_length, in tokens."""
    return np.multiply(count, max_length, dtype=np.int64)


def padded_tokens_squared(count: Any, max_length: Any) -> Int:
    """(count * max_length)**2, in tokens squared."""
    tokens = padded_tokens(count, max_length)
    return tokens * tokens


@dataclass(frozen=True)
class AffineQuadratic:
    """alpha + beta*tokens + gamma*count*max_length**2, in whole nanoseconds.

    alpha, beta and gamma are seconds per micro-batch, per padded token, and per
    sample and token squared (attention). No samples cost nothing.
    """

    alpha: float
    beta: float
    gamma: float

    def seconds(self, count: Any, max_length: Any) -> npt.NDArray[np.float64]:
        """The same in seconds, not rounded."""
        count = np.asarray(count, dtype=np.float64)
        tokens = count * max_length
        return np.where(count > 0, self.alpha + self.beta * tokens + self.gamma * tokens * max_length, 0.0)

    def __call__(self, count: Any, max_length: Any) -> Int:
        return np.rint(self.seconds(count, max_length) * NANOSECONDS).astype(np.int64)


@dataclass(frozen=True)
class Fit:
    """An affine-quadratic model fitted to measured times, and how well it fits them."""

    model: AffineQuadratic
    num_points: int
    mean_relative_error: float  # mean of |predicted - measured| / measured
    rms_residual_s: float
    r_squared: float

    def save(self, path: Path) -> None:
        """Write JSON that ``cost.path`` of a config names."""
        residuals = {key: value for key, value in asdict(self).items() if key != "model"}
        text = json.dumps({"kind": "affine_quadratic", **asdict(self.model), "residuals": residuals}, indent=2)
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
    residual = predicted - seconds
    spread = float(((seconds - seconds.mean()) ** 2).sum())
    return Fit(
        model=AffineQuadratic(*map(float, coefficients)),
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


def _affine_quadratic(config: CostConfig) -> AffineQuadratic:
    if config.path is None:
        return AffineQuadratic(config.alpha, config.beta, config.gamma)
    try:
        values = json.loads(Path(config.path).read_text(encoding="utf-8"))
        return AffineQuadratic(*(float(values[key]) for key in ("alpha", "beta", "gamma")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"cost.path = {config.path!r} cannot be read as a fitted cost ({type(error).__name__}: {error}); "
            "write one with: ddpsched fit RUN_DIR --output FILE"
        ) from None


COSTS: dict[str, Callable[[CostConfig], CostModel]] = {
    "padded_tokens": lambda config: padded_tokens,
    "padded_tokens_squared": lambda config: padded_tokens_squared,
    "affine_quadratic": _affine_quadratic,
}


def cost_model(config: CostConfig) -> CostModel:
    """The cost function that a config names."""
    return COSTS[config.kind](config)


def prefix_costs(cost: CostModel, lengths: Int) -> Int:
    """What the first k samples cost, for k = 1..K.

    ``lengths``: (K,), int64 -> (K,), int64; entry k-1 is cost(k, max(lengths[:k])).

    >>> prefix_costs(padded_tokens, np.array([3, 2, 5])).tolist()
    [3, 6, 15]
    """
    return cost(np.arange(1, len(lengths) + 1), np.maximum.accumulate(lengths))
