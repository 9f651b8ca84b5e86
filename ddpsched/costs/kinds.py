"""The cost model that a config names.

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
                       a floor, where the host launches slower
====================== ============================================ ==================

All but the second are linear in the count (down to a floor): ``fixed + count * sample(max_length)``.
In a packed micro-batch each sample then costs ``sample(its own length)``.
"""

import json
from pathlib import Path

from ddpsched.costs.calibration import KIND, Calibration
from ddpsched.costs.config import CostConfig
from ddpsched.costs.cost_model import CostModel, padded_tokens_squared
from ddpsched.errors import ConfigError

LARGEST_COST = 2**60


def cost_model(config: CostConfig) -> CostModel:
    """Return the cost model that a config names. Raises ConfigError where its file cannot be read."""
    if config.kind == "padded_tokens_squared":
        return padded_tokens_squared
    if config.kind == "padded_tokens":  # in thousandths of a token where whole ones would round alpha or gamma
        whole = config.alpha.is_integer() and config.gamma.is_integer()
        return CostModel(config.alpha, 1, config.gamma, scale=1 if whole else 1000)
    if config.path is None:
        return CostModel(config.alpha, config.beta, config.gamma)
    return Calibration.load(config.path).time if config.kind == "calibrated" else _fitted(config.path)


def _fitted(path: str) -> CostModel:
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(values, dict) or values.get("kind") != KIND:
            return CostModel(float(values["alpha"]), float(values["beta"]), float(values["gamma"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"cost.path = {path!r} cannot be read as a fitted cost ({type(error).__name__}: {error}); "
            "write one with: ddpsched fit RUN_DIR --output FILE"
        ) from None
    raise ConfigError(
        f"cost.path = {path!r} is a calibration, which holds for one model and device; set cost.kind = "
        '"calibrated", which compares them with the run\'s'
    )


def check_range(cost: CostModel, batch_size: int, max_length: int) -> None:
    """Raise ConfigError where a batch of the longest samples would cost more than a 64-bit integer holds."""
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
