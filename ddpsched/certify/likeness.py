"""Likeness: how like its target a gradient is, and why not."""

from dataclasses import dataclass

from ddpsched.certify.target import Floats


@dataclass(frozen=True, eq=False)
class Likeness:
    """The result of comparing a gradient g with its target t.

    Attributes:
        relative_error: |g - t| / |t|.
        worst: largest relative error of a single parameter that is not itself as small as the tolerance, and its name.
        cosine: cosine of the angle between g and t.
        best_scale: the s for which s * t is nearest to g.
        weights: (num_parts,), the weight of each part, by least squares.
        residual: share of g that these weights leave unexplained.
        tolerance: relative error that is allowed.
        cause: None where the error is within ``tolerance`` and no parameter's gradient is lost.
        explained: whether the cause is known, so that smaller parts would not say more.
    """

    relative_error: float
    worst: tuple[float, str]
    cosine: float
    best_scale: float
    weights: Floats
    residual: float
    tolerance: float
    cause: str | None
    explained: bool = True

    @property
    def holds(self) -> bool:
        """Whether the gradient is the target's."""
        return self.cause is None

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers for ``Check.numbers``."""
        names = ("relative_error", "tolerance", "cosine", "best_scale")
        return {**{name: getattr(self, name) for name in names}, "largest_parameter_error": self.worst[0]}

    @property
    def says(self) -> str:
        """The numbers as text."""
        sign = "<=" if self.relative_error <= self.tolerance else ">"  # also for NaN
        worst = f" (largest in {self.worst[1]}: {self.worst[0]:.2g})" if self.worst[1] else ""
        return (
            f"relative error {self.relative_error:.2g} {sign} {self.tolerance:.2g}{worst}, cosine {self.cosine:.6f}, "
            f"best scale {self.best_scale:.6g}"
        )
