"""What a micro-batch costs.

A cost model is a function ``cost(count, max_length) -> int64`` of a padded
micro-batch, over arrays that broadcast; it falls neither with count nor with
length. Costs are integers, so that every rank finds the same plan:

====================== ============================================ =============
kind                   formula                                      unit
====================== ============================================ =============
padded_tokens          alpha + count*max_length                     tokens
                       + gamma*count*max_length**2
padded_tokens_squared  (count * max_length)**2                      tokens squared
affine_quadratic       alpha + beta*count*max_length                nanoseconds
                       + gamma*count*max_length**2
====================== ============================================ =============

The first and the last are linear in the count: ``fixed + count * sample(max_length)``.
In a packed micro-batch each sample then costs ``sample(its own length)``.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ddpsched.config import CostConfig
from ddpsched.errors import ConfigError

Int = npt.NDArray[np.int64]
CostModel = Callable[[Any, Any], Int]

NANOSECONDS = 10**9


@dataclass(frozen=True)
class AffineQuadratic:
    """alpha + count * (beta*max_length + gamma*max_length**2), in whole units of 1/``scale``.

    alpha, beta and gamma are per micro-batch, per padded token, and per sample
    and token squared (attention): in seconds with ``scale`` a thousand million,
    in tokens with ``scale`` 1. No samples cost nothing.

    >>> int(padded_tokens(3, 20)), AffineQuadratic(50, 1, 0, scale=1)(3, [20, 30]).tolist()
    (60, [110, 140])
    """

    alpha: float
    beta: float
    gamma: float
    scale: int = NANOSECONDS

    @property
    def fixed(self) -> int:
        """What a micro-batch costs before its first sample."""
        return round(self.alpha * self.scale)

    def sample(self, length: Any) -> Int:
        """What a sample costs that is padded to ``length``, or as long as that in a packed micro-batch."""
        if self.gamma == 0 and self.beta * self.scale == 1:
            return np.asarray(length, dtype=np.int64)
        length = np.asarray(length, dtype=np.float64)
        return np.rint((self.beta + self.gamma * length) * length * self.scale).astype(np.int64)

    def __call__(self, count: Any, max_length: Any) -> Int:
        count = np.asarray(count, dtype=np.int64)
        return np.where(count > 0, self.fixed + count * self.sample(max_length), 0)

    def packed(self, lengths: Any) -> int:
        """What samples of these lengths cost in one packed micro-batch."""
        return self.fixed + int(self.sample(lengths).sum()) if len(lengths) else 0

    def seconds(self, count: Any, max_length: Any) -> npt.NDArray[np.float64]:
        """The padded cost in seconds, of a model whose coefficients are seconds."""
        return self(count, max_length) / self.scale


padded_tokens = AffineQuadratic(alpha=0, beta=1, gamma=0, scale=1)


def padded_tokens_squared(count: Any, max_length: Any) -> Int:
    """(count * max_length)**2, in tokens squared."""
    tokens = padded_tokens(count, max_length)
    return tokens * tokens


def _affine_quadratic(config: CostConfig) -> AffineQuadratic:
    if config.path is None:
        return AffineQuadratic(config.alpha, config.beta, config.gamma)
    try:
        values = json.loads(Path(config.path).read_text(encoding="utf-8"))
        return AffineQuadratic(float(values["alpha"]), float(values["beta"]), float(values["gamma"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"cost.path = {config.path!r} cannot be read as a fitted cost ({type(error).__name__}: {error}); "
            "write one with: ddpsched fit RUN_DIR --output FILE"
        ) from None


COSTS: dict[str, Callable[[CostConfig], CostModel]] = {
    "padded_tokens": lambda config: AffineQuadratic(config.alpha, 1, config.gamma, scale=1),
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
