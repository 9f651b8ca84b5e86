"""[cost] and [memory] of a config, and the cost model and memory caps that they name.

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
In a packed micro-batch each sample then costs ``sample(length)`` of its length.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError, model_validator

from ddpsched.costs.calibration import KIND, Calibration
from ddpsched.costs.cost_model import CostModel, padded_tokens_squared
from ddpsched.costs.memory_cap import Cap, probed
from ddpsched.decode import decode_json
from ddpsched.errors import ConfigError
from ddpsched.regular_file import read_regular
from ddpsched.table import Bytes, NonNegative, Table, Text, first_fault

LARGEST_COST = 2**60


class CostConfig(Table):
    """The cost of a micro-batch that planning balances."""

    kind: Literal["padded_tokens", "padded_tokens_squared", "affine_quadratic", "calibrated"] = "padded_tokens"
    """The formula of a micro-batch's cost."""
    path: Text | None = None
    """JSON of a fit or a calibration; else alpha, beta and gamma."""
    alpha: NonNegative = 0.0
    """Per micro-batch: seconds for affine_quadratic, padded tokens for padded_tokens."""
    beta: NonNegative = 0.0
    """Per padded token, in seconds; 1 for padded_tokens."""
    gamma: NonNegative = 0.0
    """Per count * max_length**2, in alpha's unit."""
    delta: NonNegative = 0.0
    """affine_quadratic: per sample, in seconds."""
    floor: NonNegative = 0.0
    """affine_quadratic: the least of a micro-batch, in seconds."""
    gather_alpha: NonNegative = 0.0
    """policy.kind = 'split': of gathering a part's keys and values, in alpha's unit."""
    gather_beta: NonNegative = 0.0
    """Likewise, per token that a rank receives."""
    online: bool = False
    """Each rank's speed, measured in each step, scales its cost."""

    @model_validator(mode="after")
    def _has_numbers(self) -> "CostConfig":
        given = self.path or self.alpha or self.beta or self.gamma
        if self.kind == "calibrated" and (not self.path or self.alpha or self.beta or self.gamma):
            raise ValueError("calibrated needs path, a file that `ddpsched calibrate` wrote, and no other numbers")
        if self.kind == "affine_quadratic" and not given:
            raise ValueError("affine_quadratic needs path, a fit, or at least one of alpha, beta and gamma, in seconds")
        if self.kind not in ("affine_quadratic", "calibrated") and (self.path or self.beta):
            raise ValueError(f"path and beta belong to kind = 'affine_quadratic', not {self.kind!r}")
        if (self.delta or self.floor) and (self.kind != "affine_quadratic" or self.path):
            raise ValueError("delta and floor belong to kind = 'affine_quadratic' with alpha, beta and gamma")
        if self.online and self.kind not in ("affine_quadratic", "calibrated"):
            raise ValueError("online compares measured with predicted seconds; use kind = 'calibrated'")
        if self.kind == "padded_tokens_squared" and given:
            raise ValueError("alpha and gamma belong to kind = 'padded_tokens' or 'affine_quadratic'")
        return self


class MemoryConfig(Table):
    """The limit of a rank's micro-batches: a calibrated model of (count, longest), or a probe at start-up."""

    path: Text | None = None
    """A calibration with a memory model."""
    probe: bool = False
    """Instead of path: measure how many samples of data.max_length fit."""
    budget_bytes: Bytes | None = None
    """The memory of each rank; must be given on a CPU; by default 90 % of a CUDA device."""

    @model_validator(mode="after")
    def _budget_is_used(self) -> "MemoryConfig":
        if self.path and self.probe:
            raise ValueError("path and probe = true both cap a micro-batch; give one of the two")
        if self.budget_bytes and not (self.probe or self.path):
            raise ValueError("budget_bytes is given but nothing uses it; set probe = true, or path to a calibration")
        return self


class Fitted(Table):
    """The file of ``ddpsched fit``: seconds, and how well they fit."""

    kind: Literal["affine_quadratic"] = "affine_quadratic"
    alpha: NonNegative
    beta: NonNegative
    gamma: NonNegative
    residuals: dict[str, Any] | None = None


def cost_model(config: CostConfig) -> CostModel:
    """Return the cost model that a config names. Raises ConfigError where its file cannot be read."""
    found = _cost_model(config)
    if not config.gather_alpha and not config.gather_beta:
        return found
    return replace(found, gather_alpha=config.gather_alpha, gather_beta=config.gather_beta)


def _cost_model(config: CostConfig) -> CostModel:
    if config.kind == "padded_tokens_squared":
        return padded_tokens_squared
    if config.kind == "padded_tokens":  # in thousandths of a token where whole ones would round alpha or gamma
        whole = config.alpha.is_integer() and config.gamma.is_integer()
        return CostModel(config.alpha, 1, config.gamma, scale=1 if whole else 1000)
    if config.path is None:
        return CostModel(config.alpha, config.beta, config.gamma, delta=config.delta, floor=config.floor)
    return Calibration.load(config.path).time if config.kind == "calibrated" else _fitted(config.path)


def _fitted(path: str) -> CostModel:
    try:
        values = decode_json(read_regular(path))
        if not isinstance(values, dict) or values.get("kind") != KIND:
            fitted = Fitted.model_validate(values)
            return CostModel(fitted.alpha, fitted.beta, fitted.gamma)
    except (OSError, ValueError) as error:
        fault = first_fault(error) if isinstance(error, ValidationError) else str(error)
        remedy = "write one with: ddpsched fit RUN_DIR --output FILE"
        raise ConfigError(f"cost.path = {path!r} cannot be read as a fitted cost ({fault}); {remedy}") from None
    remedy = 'set cost.kind = "calibrated", which compares them with the run\'s'
    raise ConfigError(f"cost.path = {path!r} is a calibration, which holds for one model and device; {remedy}")


def check_range(cost: CostModel, batch_size: int, max_length: int) -> None:
    """Raise ConfigError where a batch of the longest samples would cost more than a 64-bit integer holds."""
    if cost.squared and batch_size * max_length >= LARGEST_COST**0.5:
        fault = f"{batch_size} samples of {max_length} tokens are too many to square"
        raise ConfigError(f"{fault}; use cost.kind = 'padded_tokens'")
    sample = cost.delta + (cost.beta + cost.gamma * max_length) * max_length
    most = max(cost.floor, cost.alpha + sample) * batch_size * cost.scale
    if not most < LARGEST_COST:
        raise ConfigError(
            f"a step of {batch_size} samples of {max_length} tokens would cost up to {most:.3g} units with this "
            f"cost; costs are integers below {LARGEST_COST:.3g}: lower cost.alpha, cost.beta or cost.gamma (of a "
            "simulated clock executor.alpha_s, beta_s or gamma_s)"
        )


def check_sum(cost: CostModel, lengths: npt.NDArray[np.int64]) -> None:
    """Raise ConfigError where these samples cost more than a 64-bit integer holds, each in a micro-batch of its own."""
    longest = float(lengths.max())
    sample = cost.delta + (cost.beta + cost.gamma * longest) * longest
    whole = len(lengths) * (max(cost.floor, cost.alpha + sample)) * cost.scale
    if not whole < LARGEST_COST:
        raise ConfigError(
            f"{len(lengths)} samples of up to {lengths.max()} tokens would cost up to {whole:.3g} units; costs are "
            f"integers below {LARGEST_COST:.3g}: give a smaller gamma or alpha, or lengths in a coarser unit"
        )


def caps_of(memory: MemoryConfig, allowed: Sequence[int], max_length: int) -> tuple[Cap, ...]:
    """Return the cap of each rank from the memory ``allowed``.

    That is in bytes where ``memory.path`` names a calibration, which is read here; else in samples of ``max_length``
    tokens. Raises ConfigError for a model by which such a sample needs more bytes than 64-bit integers count.
    """
    if memory.path is None:
        return tuple(probed(count, max_length) for count in allowed)
    model = Calibration.load(memory.path).memory
    if not model.largest(max_length) < LARGEST_COST:
        raise ConfigError(
            f"memory.path = {memory.path!r}: by its model a sample of {max_length} tokens needs "
            f"{model.largest(max_length):.3g} bytes, more than 64-bit integers count; calibrate anew"
        )
    return tuple(Cap(budget - model.fixed, model.sample) for budget in allowed)
