"""The cost that a config names.

A cost of a padded micro-batch falls neither with count nor with length:

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

from ddpsched.costs.calibration import KIND, Calibration
from ddpsched.costs.config import CostConfig
from ddpsched.costs.cost_model import CostModel, padded_tokens_squared
from ddpsched.errors import ConfigError

LARGEST_COST = 2**60


def _affine_quadratic(config: CostConfig) -> CostModel:
    if config.path is None:
        return CostModel(config.alpha, config.beta, config.gamma)
    try:
        values = json.loads(Path(config.path).read_text(encoding="utf-8"))
        if isinstance(values, dict) and values.get("kind") == KIND:
            raise ConfigError(
                f"cost.path = {config.path!r} is a calibration, which says for which model and device it holds; "
                'set cost.kind = "calibrated", which checks that'
            )
        return CostModel(float(values["alpha"]), float(values["beta"]), float(values["gamma"]))
    except ConfigError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"cost.path = {config.path!r} cannot be read as a fitted cost ({type(error).__name__}: {error}); "
            "write one with: ddpsched fit RUN_DIR --output FILE"
        ) from None


def _calibrated(config: CostConfig) -> CostModel:
    assert config.path is not None, "CostConfig refuses it"
    return Calibration.load(config.path).time


def _padded_tokens(config: CostConfig) -> CostModel:
    """In tokens; in thousandths of one where alpha or gamma are no whole tokens, which rounding would lose."""
    whole = config.alpha.is_integer() and config.gamma.is_integer()
    return CostModel(config.alpha, 1, config.gamma, scale=1 if whole else 1000)


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
    if cost.squared and batch_size * max_length >= LARGEST_COST**0.5:
        raise ConfigError(
            f"{batch_size} samples of {max_length} tokens are too many to square; use cost.kind = 'padded_tokens'"
        )
    sample = cost.delta + (cost.beta + cost.gamma * max_length) * max_length
    most = (cost.alpha + sample) * batch_size * cost.scale
    if not most < LARGEST_COST:
        raise ConfigError(
            f"a step of {batch_size} samples of {max_length} tokens would cost up to {most:.3g} units with this "
            f"cost; costs are integers below {LARGEST_COST:.3g}: lower cost.alpha, cost.beta or cost.gamma"
        )
