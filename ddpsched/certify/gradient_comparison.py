"""Comparison of a gradient with its target; ``causes`` finds out why they differ."""

from collections.abc import Collection
from dataclasses import dataclass

from ddpsched.certify.causes import Difference
from ddpsched.certify.target import Floats, Target

TOLERANCES = {"float64": 1e-12, "float32": 1e-6, "bfloat16": 2e-2}  # relative error of a gradient, by precision


@dataclass(frozen=True, eq=False)
class Likeness:
    """The result of comparing a gradient g with its target t.

    Attributes:
        relative_error: |g - t| / |t|.
        cosine: cosine of the angle between g and t.
        best_scale: the s for which s * t is nearest to g.
        weights: (num_parts,), the weight of each part, by least squares.
        residual: share of g that these weights leave unexplained.
        tolerance: relative error that is allowed.
        cause: None where the error is within ``tolerance`` and no parameter's gradient is lost.
        explained: whether the cause is known, so that smaller parts would not say more.
    """

    relative_error: float
    cosine: float
    best_scale: float
    weights: Floats
    residual: float
    tolerance: float
    cause: str | None
    explained: bool = True

    @property
    def holds(self) -> bool:
        return self.cause is None

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers for ``Check.numbers``."""
        return {name: getattr(self, name) for name in ("relative_error", "tolerance", "cosine", "best_scale")}

    @property
    def says(self) -> str:
        """The numbers as text."""
        sign = "<=" if self.relative_error <= self.tolerance else ">"  # also for NaN
        return (
            f"relative error {self.relative_error:.2g} {sign} {self.tolerance:.2g}, cosine {self.cosine:.6f}, "
            f"best scale {self.best_scale:.6g}"
        )


def compare(
    gradient: Floats, target: Target, tolerance: float, *, rounding: float = 0.0, missing: Collection[str] = ()
) -> Likeness:
    """Compare the gradient that the optimizer got, (P,), with its target.

    ``rounding``: a relative error beyond ``tolerance`` that is allowed where nothing but noise explains it.
    ``missing``: parameters whose ``grad`` is None, zeros in ``gradient``. Raises ValueError where ``gradient`` has
    another length than the target.
    """
    if gradient.shape != target.gradient.shape:
        raise ValueError(f"a gradient of shape {gradient.shape} cannot be compared with one of {target.gradient.shape}")
    difference = Difference(gradient, target, tolerance, missing)
    cause, certainty, allowed = None, "known", tolerance
    if not difference.error <= tolerance:  # also for NaN
        cause, certainty = difference.cause()
        if certainty == "open" and difference.error <= rounding:
            cause, allowed = None, rounding
    elif difference.lost:
        cause, certainty = difference.describe_lost()
    return Likeness(
        difference.error, difference.cosine, difference.scale, difference.weights, difference.residual, allowed, cause,
        certainty == "known",
    )  # fmt: skip
