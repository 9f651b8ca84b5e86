"""[cost] and [memory]: the cost of a micro-batch, and its largest size."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ddpsched.table import NonNegative, Table


class CostConfig(Table):
    """The cost of a micro-batch that planning balances."""

    kind: Literal["padded_tokens", "padded_tokens_squared", "affine_quadratic", "calibrated"] = "padded_tokens"
    path: str | None = None  # JSON of a fit or a calibration; else alpha, beta and gamma
    # in seconds for affine_quadratic, in padded tokens for padded_tokens (whose beta is 1)
    alpha: NonNegative = 0.0  # per micro-batch
    beta: NonNegative = 0.0  # per padded token
    gamma: NonNegative = 0.0  # per count * max_length**2
    online: bool = False  # each rank's speed, measured in each step, scales its cost

    @model_validator(mode="after")
    def _has_numbers(self) -> "CostConfig":
        given = self.path or self.alpha or self.beta or self.gamma
        if self.kind == "calibrated" and (not self.path or self.alpha or self.beta or self.gamma):
            raise ValueError("calibrated needs path, a file that `ddpsched calibrate` wrote, and no other numbers")
        if self.kind == "affine_quadratic" and not given:
            raise ValueError("affine_quadratic needs path (a fit), or alpha, beta and gamma in seconds")
        if self.kind not in ("affine_quadratic", "calibrated") and (self.path or self.beta):
            raise ValueError(f"path and beta belong to kind = 'affine_quadratic', not {self.kind!r}")
        if self.online and self.kind not in ("affine_quadratic", "calibrated"):
            raise ValueError("online compares measured with predicted seconds; use kind = 'calibrated'")
        if self.kind == "padded_tokens_squared" and given:
            raise ValueError("alpha and gamma belong to kind = 'padded_tokens' or 'affine_quadratic'")
        return self


class MemoryConfig(Table):
    """The limit of a rank's micro-batches: a calibrated model of (count, longest), or a probe at start-up."""

    path: str | None = None  # a calibration with a memory model
    probe: bool = False  # else: measure how many samples of data.max_length fit
    # of each rank; must be given on a CPU; by default 90 % of a CUDA device
    budget_bytes: Annotated[int, Field(gt=0, le=2**60)] | None = None

    @model_validator(mode="after")
    def _somebody_uses_it(self) -> "MemoryConfig":
        if self.path and self.probe:
            raise ValueError("path and probe = true both cap a micro-batch; give one of the two")
        if self.budget_bytes and not (self.probe or self.path):
            raise ValueError("budget_bytes is given but nothing uses it; set probe = true, or path to a calibration")
        return self
