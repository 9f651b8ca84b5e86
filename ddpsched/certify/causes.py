r"""Why a gradient is not its target: which weighting of the samples is it, and where does it depart?

The target divides the summed loss by what counts over all ranks,

    g = 1/T * sum_m p_m        p_m: gradient of part m's *summed* loss        T = sum_m n_m

so every sample (or label token) weighs w_m = 1/T. A wrong factor on the way changes the weights and nothing else:
what is found then is sum_m w_m p_m with other w_m. These are looked for on S coordinates drawn at random, where the
p_m are known: first among the weightings that known mistakes lead to (``mistakes``), up to a common factor, then by
least squares. What no weights explain is no gradient of these samples under these weights of the model. A weighting
is judged by how well it fits, never read from solved weights alone: gradients that are nearly parallel then make the
answer "cannot tell" and not a wrong one.

A difference that no weights explain is looked for at single parameters and coordinates (``departure``), however
little these weigh in the whole. What is left of all that is called rounding on evidence of it (``rounding``) alone.
"""

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Literal

import numpy as np

from ddpsched.certify.certificate import first_few
from ddpsched.certify.departure import Lost, Sums, lies_along, lost, where_most, wrong_parameters
from ddpsched.certify.known_causes import Mistake, factors, mistakes, times
from ddpsched.certify.rounding import rounding
from ddpsched.certify.target import Floats, Target

ALIKE = 1e-3  # weightings that differ by less, relatively, are one
WITHIN = 0.3  # weights explain a difference of which they leave this share, or less
NEARLY = 0.3  # relative error up to which it may be the same batch, with little lost or added
CLEAR = 10  # how many times the noise a part's change must be, to be told
SEVERAL = 8  # coordinates at which no part's gradient is all of the difference by chance
ALONE, ALIKE_PARTS = 0.03, 0.99  # a part's own gradient but for this share; cosine of others that it may be too
# known: why; placed: where, and smaller parts may tell why; open: neither, so that it may be noise
Certainty = Literal["known", "placed", "open"]
Cause = tuple[str, Certainty]


class Difference:
    """A found gradient against its target. ``missing``: parameters whose ``grad`` is None.

    ``error``, ``cosine``, ``scale``: relative error, cosine and best scale. ``weights``, ``residual``: of least
    squares, NaN where something is not finite.
    """

    def __init__(self, found: Floats, target: Target, tolerance: float, missing: Collection[str] = ()) -> None:
        self._found, self._target, self._tolerance, self._missing = found, target, tolerance, missing
        self._limit = min(0.1, 30 * tolerance)
        self._sketch = found[target.coordinates].astype(np.float64)
        self._parts = np.asarray(target.parts, dtype=np.float64)
        with np.errstate(all="ignore"):
            self._sums = Sums.of(found, target)
            self.error, self.cosine, self.scale = self._sums.numbers
        self._sizes = np.linalg.norm(self._parts, axis=1)
        self._usual = 1 / target.total if target.total else 0.0  # where nothing is learnt, nothing weighs
        self.weights, self.residual = np.full(len(self._parts), np.nan), float("nan")
        if np.isfinite(self._sketch).all() and np.isfinite(self._parts).all():
            self._solve()

    def _solve(self) -> None:
        """Least-squares weights, and the share of the gradient that they leave.

        Solved for the difference from the right weights: where parts are parallel, nothing says that theirs are others.
        """
        given = self._sizes > 0
        directions = np.divide(self._parts, self._sizes[:, None], out=np.zeros_like(self._parts), where=given[:, None])
        self._rest = self._sketch - self._right()
        self._change, *_ = np.linalg.lstsq(directions.T, self._rest, rcond=1e-10)
        self.weights = self._usual + np.divide(self._change, self._sizes, out=np.zeros_like(self._sizes), where=given)
        self._left = float(np.linalg.norm(self._rest - self._change @ directions))
        size = float(np.linalg.norm(self._sketch))
        self.residual = self._left / size if size else 0.0

    def _right(self) -> Floats:
        """(S,): what the right weights make of the parts."""
        return self._usual * self._parts.sum(axis=0)

    @cached_property
    def lost(self) -> Lost:
        """Parameters and coordinates without a gradient."""
        return lost(self._found, self._target, self._sums, self._tolerance, self._missing)

    def cause(self) -> Cause:
        """Of a difference that is no accident."""
        known = self._nothing_to_compare() or self._weighting()
        if known is not None:
            return known, "known"
        if self.lost:
            return self.told_lost()
        wrong = wrong_parameters(self._target, self._sums, self._tolerance)
        if wrong:
            return self._told_of(wrong)
        if self._along:
            return self._factor(), "placed"
        return self._unexplained(), "open"

    def _nothing_to_compare(self) -> str | None:
        if not np.isfinite(self._found).all():
            return "it holds NaN or infinity: a mean over no samples, an overflow, or the data"
        if not np.isfinite(self._parts).all() or not self._target.gradient.any():
            return "cannot tell: the target itself is zero or not finite, so the loss of these samples decides nothing"
        if not self._found.any():
            return "the gradient is zero: cleared before it was read, or the loss does not reach the parameters"
        return None

    @cached_property
    def _along(self) -> bool:
        return lies_along(self._found, self._target, self._sums, self.scale, self._tolerance)

    def _weighting(self) -> str | None:
        """Other weights of the parts, or a common factor, where these explain the difference."""
        whole = float(np.linalg.norm(self._rest))
        within = whole > 0 and self._left <= WITHIN * whole
        fits = self._fitting() if within or self._along else []
        if len(fits) == 1:
            return fits[0]
        if fits:
            return f"cannot tell, as the {self._target.unit}' gradients are alike: {first_few(fits, 3, '; or ')}"
        # a factor that noise lies beside is told as one, and not as weights that are all the same
        beside = float(np.linalg.norm(self._rest - (self.scale - 1) * self._right())) if self._along else whole
        return self._told_weights() if within and self._left <= WITHIN * beside else None

    def _fitting(self) -> list[str]:
        """The known mistakes that explain the gradient, told; those whose factor can be named come first.

        The right weights explain it only by a factor: what they leave without one is no matter of weights.
        """
        found: list[tuple[float, Mistake, float, Floats]] = []
        for mistake in mistakes(self._target):
            shape = mistake.weights @ self._parts
            size = float(shape @ shape)
            scale = float(self._sketch @ shape) / size if size else 0.0
            weights = scale * mistake.weights
            misfit = self._misfit(weights)
            known = any(np.abs(weights - other).max() <= ALIKE * np.abs(weights).max() for *_, other in found)
            if misfit <= self._limit and not known:
                found.append((misfit, mistake, scale, weights))
        best = min((misfit for misfit, *_ in found), default=0.0)
        fits = [
            (mistake, scale)
            for misfit, mistake, scale, _ in found
            if misfit <= max(3 * best, self._tolerance) and (mistake.words or self._along)
        ]
        told = [(self._named(mistake, scale), mistake.unnamed(scale)) for mistake, scale in fits]
        told.sort(key=lambda words: words[0] is None)
        return [named or unnamed for named, unnamed in told]

    def _named(self, mistake: Mistake, scale: float) -> str | None:
        return mistake.named(scale, factors(self._target), min(0.05, max(1e-6, 3 * self._limit)))

    def _factor(self) -> str:
        """A common factor, with noise beside it."""
        right = next(iter(mistakes(self._target)))
        return self._named(right, self.scale) or right.unnamed(self.scale)

    def _misfit(self, weights: Floats) -> float:
        """What ``weights`` leave of the gradient, over the size of all that they add up: the unit of rounding."""
        size = float(np.abs(weights) @ self._sizes)
        return float(np.linalg.norm(self._sketch - weights @ self._parts)) / size if size else float("inf")

    def _told_weights(self) -> str | None:
        """The weights that least squares found, where they can be told apart; None where no part's is clearly wrong."""
        num_parts, num_coordinates = self._parts.shape
        if 2 * num_parts > num_coordinates:
            return self._told_single()  # so many weights explain anything
        if self._misfit(self.weights) > self._limit:
            return None
        unit, total = self._target.unit, self._target.total
        relative = self.weights * total
        apart, noise = np.abs(relative - 1), self._left / (num_coordinates - num_parts) ** 0.5
        odd = (np.abs(self._change) > CLEAR * noise) & (apart > max(self._tolerance, 0.01 * apart.max()))
        if not odd.any():
            return None
        given = self._parts[self._sizes > 0] / self._sizes[self._sizes > 0, None]
        if (self._sizes == 0).any() or np.linalg.cond(given.T) * self._limit > 0.02:
            return f"the right {unit} with wrong weights; whose cannot be told, as their gradients are alike"
        told = [
            f"{self._name(int(m))}: {_weight(relative[m], noise * total / self._sizes[m])}" for m in np.flatnonzero(odd)
        ]
        rest = "" if odd.all() else " (all others 1)"
        return f"the right {unit}, weighted wrongly; in units of the right weight, {first_few(told)}{rest}"

    def _told_single(self) -> str | None:
        """The one part whose own gradient, times a number, is all of the difference; None where there is none."""
        whole = float(np.linalg.norm(self._rest))
        alike = self._parts @ self._rest / np.where(self._sizes > 0, self._sizes * whole, 1.0)
        m = int(np.argmax(np.abs(alike)))
        left = max(0.0, 1 - float(alike[m]) ** 2) ** 0.5
        if len(self._rest) < SEVERAL or left > ALONE:
            return None
        relative = 1 + self._target.total * float(alike[m]) * whole / float(self._sizes[m])
        told = f"{self._name(m)}: {_weight(relative, left * abs(relative - 1))}"
        others = [self._name(int(k)) for k in np.flatnonzero(np.abs(alike) > ALIKE_PARTS) if k != m]
        if others:
            told += f" (or another weight of {first_few(others, 3)}, whose gradient is alike)"
        return f"the right {self._target.unit}, weighted wrongly; in units of the right weight, {told} (all others 1)"

    def _name(self, m: int) -> str:
        ranks = self._target.ranks
        if self._target.names:
            return self._target.names[m]
        return f"micro-batch {np.sum(ranks[:m] == ranks[m])} of rank {ranks[m]}"

    def told_lost(self) -> Cause:
        """What is lost, and what else is wrong at the parameters that have lost nothing.

        Zeros may be those of a single sample that is lost, where no other reaches these coordinates; None is not.
        """
        found, slices, told = self.lost, self._target.slices, []
        none = bool(found.parameters) and all(name in self._missing for name in found.parameters)
        if found.parameters:
            told.append(
                f"the gradient{_of(found.parameters)} is missing: {'None' if none else '0 everywhere'}, though the "
                f"losses of the {self._target.unit} reach it"
            )
        for name, count in found.coordinates.items():
            size = slices[name].stop - slices[name].start
            told.append(f"the gradient{_of([name])} is missing at {count:,} of its {size:,} coordinates")
        others = [name for name in slices if name not in (*found.parameters, *found.coordinates)]
        if others:
            rest = self._at(others)
            if rest.error > self._tolerance:
                told.append(f"at all other parameters: {rest.cause()[0]}")
        return "; ".join(told), "known" if none else "placed"

    def _told_of(self, wrong: Sequence[str]) -> Cause:
        """What is wrong at these parameters, and at no others."""
        here = self._at(wrong)
        if here.error != here.error:  # no samples' loss reaches them, so the target is 0
            return f"the gradient{_of(wrong)} is not 0, though the loss of no sample reaches it", "known"
        cause, certainty = here.cause()
        return f"the gradient{_of(wrong)}, and no other's, is wrong: {cause}", certainty

    def _at(self, names: Collection[str]) -> "Difference":
        target, found = self._target.of(names, self._found)
        return Difference(found, target, self._tolerance, self._missing)

    def _unexplained(self) -> str:
        """A difference that is no weighting, no factor, and not at some parameters alone."""
        told = rounding(self._sketch, self._target)
        if told is not None:
            return told
        if self.error < NEARLY:
            place = where_most(self._sketch, self._target, self._sums)
            return (
                f"unexplained{f' ({place})' if place else ''}: nearly the target, but neither weights of its samples "
                "nor a factor, and nothing shows that it is rounding; may be a lost token, row or part, another loss "
                "(label smoothing), a term added to the gradient (weight decay), other weights of the model by a "
                "little, or values clipped one by one"
            )
        return (
            "not a combination of these samples' gradients: another batch (a stale plan), dropout, other weights of "
            "the model, or values clipped one by one"
        )


def _of(names: Sequence[str]) -> str:
    """Of which parameters; nothing where they have no names."""
    return f" of {first_few(names, 3)}" if any(names) else ""


def _weight(relative: float, noise: float) -> str:
    """A part's weight, in units of the right one, to the digits that the noise leaves."""
    if abs(relative - 1) < 1e-3:
        return times(relative)
    digits = int(np.clip(-np.log10(30 * noise), 0, 4)) if noise else 4
    return f"{round(float(relative), digits) + 0.0:g}"
