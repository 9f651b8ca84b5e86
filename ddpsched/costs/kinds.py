"""What a micro-batch costs.

A cost model is a function ``cost(count, max_length) -> int64`` of a padded
micro-batch, over arrays that broadcast; it falls neither with count nor with
length. Costs are integers, so that every rank finds the same plan:

====================== ============================================ ==================
kind                   formula                                      unit
====================== ============================================ ==================
padded_tokens          alpha + count*max_length                     tokens (or 1/1000)
                       + gamma*count*max_length**2
padded_tokens_squared  (count * max_length)**2                      tokens squared
affine_quadratic       alpha + beta*count*max_length                nanoseconds
                       + gamma*count*max_length**2
calibrated             the same + delta*count; on a GPU not below    nanoseconds
                       a floor, where its host launches slower
====================== ============================================ ==================

All but the second are linear in the count (down to a floor): ``fixed + count * sample(max_length)``.
In a packed micro-batch each sample then costs ``sample(its own length)``.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ddpsched.config import CostConfig
from ddpsched.costs.calibration import KIND, Calibration
from ddpsched.costs.cost_model import AffineQuadratic, Floored, Int
from ddpsched.errors import ConfigError

LARGEST_COST = 2**60

CostModel = Callable[[Any, Any], Int] | AffineQuadratic | Floored

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
        if isinstance(values, dict) and values.get("kind") == KIND:
            raise ConfigError(
                f"cost.path = {config.path!r} is a calibration, which says for which model and device it holds; "
                'set cost.kind = "calibrated", which checks that'
            )
        return AffineQuadratic(float(values["alpha"]), float(values["beta"]), float(values["gamma"]))
    except ConfigError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"cost.path = {config.path!r} cannot be read as a fitted cost ({type(error).__name__}: {error}); "
            "write one with: ddpsched fit RUN_DIR --output FILE"
        ) from None


def _calibrated(config: CostConfig) -> AffineQuadratic | Floored:
    assert config.path is not None, "CostConfig refuses it"
    return Calibration.load(config.path).time


def _padded_tokens(config: CostConfig) -> AffineQuadratic:
    """In tokens; in thousandths of one where alpha or gamma are no whole tokens, which rounding would lose."""
    whole = config.alpha.is_integer() and config.gamma.is_integer()
    return AffineQuadratic(config.alpha, 1, config.gamma, scale=1 if whole else 1000)


COSTS: dict[str, Callable[[CostConfig], CostModel]] = {
    "padded_tokens": _padded_tokens,
    "padded_tokens_squared": lambda config: padded_tokens_squared,
    "affine_quadratic": _affine_quadratic,
    "calibrated": _calibrated,
}


def cost_model(config: CostConfig) -> CostModel:
    """The cost function that a config names."""
    return COSTS[config.kind](config)


def check_range(cost: CostModel, batch_size: int, max_length: int) -> None:
    """ConfigError where a batch of the longest samples would cost more than an integer of 64 bits holds."""
    linear = getattr(cost, "linear", cost)
    if cost is padded_tokens_squared and batch_size * max_length >= LARGEST_COST**0.5:
        raise ConfigError(
            f"{batch_size} samples of {max_length} tokens are too many to square; use cost.kind = 'padded_tokens'"
        )
    if isinstance(linear, AffineQuadratic):
        sample = linear.delta + (linear.beta + linear.gamma * max_length) * max_length
        most = (linear.alpha + sample) * batch_size * linear.scale
        if not most < LARGEST_COST:
            raise ConfigError(
                f"a step of {batch_size} samples of {max_length} tokens would cost up to {most:.3g} units with this "
                f"cost; costs are integers below {LARGEST_COST:.3g}: lower cost.alpha, cost.beta or cost.gamma"
            )


def alone(cost: CostModel, lengths: Int) -> Int:
    """What each sample needs without padding and without a micro-batch's fixed part. ``lengths``: (n,) -> (n,)."""
    linear = getattr(cost, "linear", cost)
    return linear.sample(lengths) if isinstance(linear, AffineQuadratic) else cost(1, lengths)


def prefix_costs(cost: CostModel, lengths: Int) -> Int:
    """What the first k samples cost, for k = 1..K.

    ``lengths``: (K,), int64 -> (K,), int64; entry k-1 is cost(k, max(lengths[:k])).

    >>> prefix_costs(padded_tokens, np.array([3, 2, 5])).tolist()
    [3, 6, 15]
    """
    return cost(np.arange(1, len(lengths) + 1), np.maximum.accumulate(lengths))
