"""Is a gradient its target, and by how much is it not? Why not is another file's question (``causes``)."""

from collections.abc import Collection
from dataclasses import dataclass

from ddpsched.certify.causes import Difference
from ddpsched.certify.target import Floats, Target

TOLERANCES = {"float64": 1e-12, "float32": 1e-6, "bfloat16": 2e-2}  # relative error of a gradient, by precision


@dataclass(frozen=True, eq=False)
class Likeness:
    """How alike they are: ``relative_error`` |found - target| / |target|, ``cosine``, and ``best_scale``, the s for
    which s * target is nearest. ``weights``: (num_parts,), w_m by least squares; ``residual``: what they leave of the
    found gradient, as a share of it. ``cause``: None where the error is within ``tolerance`` and no parameter's
    gradient is lost. ``explained``: whether the cause is known, and smaller parts would tell no more.
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
        """For ``Check.numbers``."""
        return {
            "relative_error": self.relative_error, "tolerance": self.tolerance, "cosine": self.cosine,
            "best_scale": self.best_scale,
        }  # fmt: skip

    @property
    def says(self) -> str:
        """The numbers in words."""
        sign = "<=" if self.relative_error <= self.tolerance else ">"  # also for NaN
        return (
            f"relative error {self.relative_error:.2g} {sign} {self.tolerance:.2g}, cosine {self.cosine:.6f}, "
            f"best scale {self.best_scale:.6g}"
        )


def compare(
    found: Floats, target: Target, tolerance: float, *, rounding: float = 0.0, missing: Collection[str] = ()
) -> Likeness:
    """``found``: (P,), the gradient that the optimizer got. ``rounding``: an error that is allowed beyond ``tolerance``
    where nothing but noise is left of it. ``missing``: parameters whose ``grad`` is None, zeros in ``found``.

    Raises ValueError where ``found`` has another length than the target.
    """
    if found.shape != target.gradient.shape:
        raise ValueError(f"a gradient of shape {found.shape} cannot be compared with one of {target.gradient.shape}")
    difference = Difference(found, target, tolerance, missing)
    cause, certainty, allowed = None, "known", tolerance
    if not difference.error <= tolerance:  # also for NaN
        cause, certainty = difference.cause()
        if certainty == "open" and difference.error <= rounding:
            cause, allowed = None, rounding
    elif difference.lost:
        cause, certainty = difference.told_lost()
    return Likeness(
        difference.error, difference.cosine, difference.scale, difference.weights, difference.residual, allowed, cause,
        certainty == "known",
    )  # fmt: skip
