r"""Is a gradient its target, and if not: which weighting of the samples is it?

The target divides the summed loss by what counts over all ranks,

    g = 1/T * sum_m p_m        p_m: gradient of part m's *summed* loss        T = sum_m n_m

so every sample (or label token) weighs w_m = 1/T. A wrong factor on the way changes the weights and nothing else:
what is found then is sum_m w_m p_m with other w_m. These are looked for on S coordinates drawn at random, where the
p_m are known: first among the weightings that known mistakes lead to (``mistakes``), up to a common factor, then by
least squares. What no weights explain is no gradient of these samples under these weights of the model. A weighting
is judged by how well it fits, never read from solved weights alone: gradients that are nearly parallel then make the
answer "cannot tell" and not a wrong one.
"""

from dataclasses import dataclass

import numpy as np

from ddpsched.certify.mistakes import Mistake, factors, mistakes
from ddpsched.certify.target import Floats, Target
from ddpsched.certify.verdict import numbered

TOLERANCES = {"float64": 1e-12, "float32": 1e-6, "bfloat16": 2e-2}  # relative error of a gradient, by precision
ALIKE = 1e-3  # weightings that differ by less, relatively, are one


@dataclass(frozen=True, eq=False)
class Likeness:
    """How alike they are: ``relative_error`` |found - target| / |target|, ``cosine``, and ``best_scale``, the s for
    which s * target is nearest. ``weights``: (num_parts,), w_m by least squares; ``residual``: what they leave of the
    found gradient, as a share of it. ``cause``: None where the error is within ``tolerance``.
    """

    relative_error: float
    cosine: float
    best_scale: float
    weights: Floats
    residual: float
    tolerance: float
    cause: str | None

    @property
    def holds(self) -> bool:
        return self.relative_error <= self.tolerance  # not for NaN

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
        sign = "<=" if self.holds else ">"
        return (
            f"relative error {self.relative_error:.2g} {sign} {self.tolerance:.2g}, cosine {self.cosine:.6f}, "
            f"best scale {self.best_scale:.6g}"
        )


def compare(found: Floats, target: Target, tolerance: float) -> Likeness:
    """``found``: (P,), the gradient that the optimizer got. Raises ValueError where it has another length."""
    if found.shape != target.gradient.shape:
        raise ValueError(f"a gradient of shape {found.shape} cannot be compared with one of {target.gradient.shape}")
    error, cosine, scale = _numbers(found, target.gradient)
    sketch, parts = found[target.coordinates].astype(np.float64), np.asarray(target.parts, dtype=np.float64)
    weights, residual = np.full(len(parts), np.nan), float("nan")
    if np.isfinite(sketch).all() and np.isfinite(parts).all():
        # a step in which nothing is learnt weighs nothing
        weights, residual = _solve(sketch, parts, 1 / target.total if target.total else 0.0)
    cause = None if error <= tolerance else _cause(found, sketch, parts, target, tolerance, error, weights)
    return Likeness(error, cosine, scale, weights, residual, tolerance, cause)


def _numbers(found: Floats, target: Floats) -> tuple[float, float, float]:
    """Relative error, cosine, best scale; added up in pieces, as these vectors are as large as a model."""
    sums = np.zeros(4)
    with np.errstate(all="ignore"):
        for start in range(0, len(found), 2**22):
            f, t = (each[start : start + 2**22].astype(np.float64) for each in (found, target))
            sums += [(f - t) @ (f - t), f @ f, t @ t, f @ t]
    apart, ff, tt, ft = sums.tolist()
    if tt == 0:  # a loss of nothing: every multiple of its gradient is its gradient
        return float("nan"), float("nan"), float("nan")
    return (apart / tt) ** 0.5, ft / (ff * tt) ** 0.5 if ff else 0.0, ft / tt


def _solve(sketch: Floats, parts: Floats, usual: float) -> tuple[Floats, float]:
    """Least-squares weights, and the share of the gradient that they leave.

    Solved for the difference from ``usual``: where parts are parallel, nothing says that their weights are others.
    """
    sizes = np.linalg.norm(parts, axis=1)
    directions = np.divide(parts, sizes[:, None], out=np.zeros_like(parts), where=sizes[:, None] > 0)
    rest = sketch - usual * parts.sum(axis=0)
    change, *_ = np.linalg.lstsq(directions.T, rest, rcond=1e-10)
    weights = usual + np.divide(change, sizes, out=np.zeros_like(change), where=sizes > 0)
    size = float(np.linalg.norm(sketch))
    return weights, float(np.linalg.norm(rest - change @ directions)) / size if size else 0.0


def _cause(
    found: Floats, sketch: Floats, parts: Floats, target: Target, tolerance: float, error: float, weights: Floats
) -> str:
    """In words; see the module's docstring."""
    if not np.isfinite(found).all():
        return "it holds NaN or infinity: a mean over no samples, an overflow, or the data"
    if not np.isfinite(parts).all() or not target.gradient.any():
        return "cannot tell: the target itself is zero or not finite, so the loss of these samples decides nothing"
    if not found.any():
        return "the gradient is zero: cleared before it was read, or the loss does not reach the parameters"
    limit = min(0.1, 30 * tolerance)
    fits = _fitting(sketch, parts, target, tolerance, limit)
    if len(fits) == 1:
        return fits[0]
    if fits:
        return f"cannot tell, as the {target.unit}' gradients are alike: {numbered(fits, 3, '; or ')}"
    if len(parts) < parts.shape[1] and _misfit(sketch, parts, weights) <= limit:
        return _told(weights, parts, target, limit)
    if error < 0.02:
        return "nearly the target: computed, or added up, in a lower precision than this certificate's"
    return (
        "not a combination of these samples' gradients: another batch (a stale plan), dropout, other weights of the "
        "model, or values clipped one by one"
    )


def _fitting(sketch: Floats, parts: Floats, target: Target, tolerance: float, limit: float) -> list[str]:
    """The known mistakes that explain the gradient, told; those whose factor can be named come first."""
    found: list[tuple[float, Mistake, float, Floats]] = []
    for mistake in mistakes(target):
        shape = mistake.weights @ parts
        size = float(shape @ shape)
        scale = float(sketch @ shape) / size if size else 0.0
        weights, misfit = scale * mistake.weights, _misfit(sketch, parts, scale * mistake.weights)
        known = any(np.abs(weights - other).max() <= ALIKE * np.abs(weights).max() for *_, other in found)
        if misfit <= limit and not known:
            found.append((misfit, mistake, scale, weights))
    best = min((misfit for misfit, *_ in found), default=0.0)
    near = min(0.05, max(1e-6, 3 * limit))
    fits = [(mistake, scale) for misfit, mistake, scale, _ in found if misfit <= max(3 * best, tolerance)]
    common = factors(target)
    told = [(mistake.named(scale, common, near), mistake.unnamed(scale)) for mistake, scale in fits]
    told.sort(key=lambda words: words[0] is None)
    return [named or unnamed for named, unnamed in told]


def _misfit(sketch: Floats, parts: Floats, weights: Floats) -> float:
    """What ``weights`` leave of the gradient, over the size of all that they add up: the unit of rounding."""
    size = float(np.abs(weights) @ np.linalg.norm(parts, axis=1))
    return float(np.linalg.norm(sketch - weights @ parts)) / size if size else float("inf")


def _told(weights: Floats, parts: Floats, target: Target, limit: float) -> str:
    """The weights that least squares found, where they can be told apart."""
    relative, sizes = weights * target.total, np.linalg.norm(parts, axis=1)
    if (sizes == 0).any() or np.linalg.cond((parts / sizes[:, None]).T) * limit > 0.02:
        return f"the right {target.unit} with wrong weights; whose cannot be told, as their gradients are alike"
    names = target.names or tuple(
        f"micro-batch {np.sum(target.ranks[:m] == rank)} of rank {rank}" for m, rank in enumerate(target.ranks)
    )
    odd = [f"{names[m]}: {round(float(relative[m]), 4):g}" for m in np.flatnonzero(np.abs(relative - 1) > 0.01)]
    rest = " (all others 1)" if len(odd) < len(weights) else ""
    return f"the right {target.unit}, weighted wrongly; in units of the right weight, {numbered(odd)}{rest}"
