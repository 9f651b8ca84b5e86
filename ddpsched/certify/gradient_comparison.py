r"""Comparison of a gradient with its target: which weights its samples have, and where it departs.

The target divides the summed loss by what counts over all ranks,

    g = 1/T * sum_m p_m        p_m: gradient of part m's *summed* loss        T = sum_m n_m

so every sample (or label token) weighs w_m = 1/T. A wrong factor on the way changes the weights and nothing else: the
gradient is then sum_m w_m p_m with other w_m. These are looked for on S coordinates drawn at random, at which the p_m
are known: first among the weights that known mistakes lead to (``mistakes``), up to a common factor, then by least
squares. A gradient that no weights explain is no gradient of these samples under these weights of the model. Weights
are judged by how well they fit, and never read from solved weights alone: where gradients are nearly parallel, the
answer is "cannot tell" and not a wrong one.

A difference that no weights explain is looked for at single parameters and coordinates (``Departure``), however
little these weigh in total. What remains is called rounding only on evidence of it (``rounding``).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

import numpy as np

from ddpsched.certify.causes import Departure, Mistake, factors, mistakes, rounding, times
from ddpsched.certify.certificate import first_few
from ddpsched.certify.likeness import Likeness
from ddpsched.certify.small_errors import has_factor, wrong_alone
from ddpsched.certify.target import Floats, Target

TOLERANCES = {"float64": 1e-12, "float32": 1e-6, "bfloat16": 2e-2}  # relative error of a gradient, by precision
ALIKE = 1e-3  # weights that differ by less, relatively, are the same
WITHIN = 0.3  # weights explain a difference of which they leave this share, or less
NEARLY = 0.3  # relative error up to which it may be the same batch, with little lost or added
CLEAR = 10  # how many times the noise a part's change must be, to be reported
SEVERAL = 8  # coordinates at which no part's gradient is all of the difference by chance
ALONE, ALIKE_PARTS = 0.03, 0.99  # a part's own gradient but for this share; cosine of others that it may be too
# known: the cause; placed: the place, and smaller parts may show the cause; open: neither, so that it may be noise
Certainty = Literal["known", "placed", "open"]
Cause = tuple[str, Certainty]


def compare(
    gradient: Floats, target: Target, tolerance: float, *, rounding: float = 0.0, missing: Collection[str] = (),
    again: Callable[[], Floats] | None = None, additions: Mapping[str, Callable[[], Floats]] | None = None,
) -> Likeness:  # fmt: skip
    """Compare the gradient that the optimizer got, (P,), with its target.

    ``rounding``: a relative error beyond ``tolerance`` that is allowed where nothing but noise explains it.
    ``missing``: parameters whose ``grad`` is None, zeros in ``gradient``. ``again()``: the target's gradient
    with each weight changed by its last bit, by which single parameters are judged. ``additions``: vectors, (P,), of
    which a multiple, "{}", may have been added, by what that would be. Raises ValueError where ``gradient`` has another
    length than the target.
    """
    if gradient.shape != target.gradient.shape:
        raise ValueError(f"a gradient of shape {gradient.shape} cannot be compared with one of {target.gradient.shape}")
    difference = Difference(gradient, target, tolerance, missing, additions)
    cause, certainty, allowed = None, "known", tolerance
    if not difference.error <= tolerance:  # also for NaN
        cause, certainty = difference.cause()
        if certainty == "open" and difference.error <= rounding:
            cause, allowed = None, rounding
    elif difference.lost:
        cause, certainty = difference.describe_lost()
    else:
        cause = difference.small_error(again)
    numbers = (
        difference.error,
        difference.worst,
        difference.cosine,
        difference.scale,
        difference.weights,
        difference.residual,
    )
    return Likeness(*numbers, allowed, cause, explained=certainty == "known")


class Difference(Departure):
    """The difference between a gradient and its target, with its cause.

    ``weights``, ``residual``: of least squares; NaN where something is not finite.
    """

    def __init__(
        self, gradient: Floats, target: Target, tolerance: float, missing: Collection[str] = (),
        additions: Mapping[str, Callable[[], Floats]] | None = None,
    ) -> None:  # fmt: skip
        with np.errstate(all="ignore"):
            super().__init__(gradient, target, tolerance, missing)
        self._additions = additions or {}
        self._limit = min(0.1, 30 * tolerance)
        self._parts = np.asarray(target.parts, dtype=np.float64)
        self._sizes = np.linalg.norm(self._parts, axis=1)
        self.weights, self.residual = np.full(len(self._parts), np.nan), float("nan")
        if np.isfinite(self._sketch).all() and np.isfinite(self._parts).all():
            self._solve()

    def _solve(self) -> None:
        """Find least-squares weights, and the share of the gradient that they leave.

        Solved for the difference from the right weights: where parts are parallel, nothing shows that theirs differ.
        """
        usual = 1 / self._target.total if self._target.total else 0.0  # where nothing is learnt, nothing weighs
        nonzero = np.where(self._sizes > 0, self._sizes, 1.0)
        directions = self._parts / nonzero[:, None]
        self._right = usual * self._parts.sum(axis=0)  # (S,): what the right weights make of the parts
        self._rest = self._sketch - self._right
        self._change, *_ = np.linalg.lstsq(directions.T, self._rest, rcond=1e-10)
        self.weights = usual + self._change / nonzero
        self._left = float(np.linalg.norm(self._rest - self._change @ directions))
        size = float(np.linalg.norm(self._sketch))
        self.residual = self._left / size if size else 0.0

    def cause(self) -> Cause:
        """Return the cause of a difference beyond the tolerance."""
        if not np.isfinite(self._gradient).all():
            return "it holds NaN or infinity: a mean over no samples, an overflow, or the data", "known"
        if not np.isfinite(self._parts).all() or not self._target.gradient.any():
            return "cannot tell: the target itself is zero or not finite, so these samples' loss shows nothing", "known"
        if not self._gradient.any():
            words = "the gradient is zero: cleared before it was read, or the loss does not reach the parameters"
            return words, "known"
        weighting = self._weighting()
        if weighting is not None:
            return weighting, "known"
        added = self._added()
        if added is not None:
            return added, "known"
        if self.lost:
            return self.describe_lost()
        wrong = self.wrong_parameters()
        if wrong:
            here = self._at(wrong)
            if np.isnan(here.error):  # no samples' loss reaches them, so the target is 0
                return f"the gradient{_of(wrong)} is not 0, though the loss of no sample reaches it", "known"
            cause, certainty = here.cause()
            return f"the gradient{_of(wrong)}, and no other's, is wrong: {cause}", certainty
        if self.along:  # a common factor, with noise beside it
            return self._describe(next(mistakes(self._target)), self.scale)[1], "placed"
        return self._unexplained(), "open"

    @property
    def worst(self) -> tuple[float, str]:
        """The largest relative error of a single parameter, of those larger than the tolerance; 0 and "" for none."""
        large = self.target_squares > self._tolerance**2 * self.target_squares.sum()
        if not large.any() or "" in self._target.slices:
            return 0.0, ""
        at = int(np.argmax(np.where(large, self.errors, -1.0)))
        return float(self.errors[at]), list(self._target.slices)[at]

    def small_error(self, again: Callable[[], Floats] | None) -> str | None:
        """Return the cause of an error within the tolerance that is no rounding; None where there is none."""
        if has_factor(self, self._tolerance):
            return self._describe(next(mistakes(self._target)), self.scale)[1]
        wrong = wrong_alone(self, self._target, self._tolerance, again)
        if not wrong:
            return None
        here = self._at(wrong)
        return f"the gradient{_of(wrong)} alone is wrong, by {here.error:.2g} of its size: {here.cause()[0]}"

    def _added(self) -> str | None:
        """Return what was added to the gradient: a multiple of one of the ``additions`` is all of the difference."""
        apart = self._gradient.astype(np.float64) - self._target.gradient
        size = float(np.linalg.norm(apart))
        for words, addition in self._additions.items():
            vector = addition().astype(np.float64)
            norm = float(np.linalg.norm(vector))
            along = float(apart @ vector) / norm if norm else 0.0
            if size**2 - along**2 <= ALONE**2 * size**2:
                return words.format(times(along / norm))
        return None

    def _weighting(self) -> str | None:
        """Return other weights of the parts, or a common factor, where these explain the difference."""
        whole = float(np.linalg.norm(self._rest))
        within = whole > 0 and self._left <= WITHIN * whole
        fits = self._fitting() if within or self.along else []
        if len(fits) == 1:
            return fits[0]
        if fits:
            return f"cannot tell, as the {self._target.unit}' gradients are alike: {first_few(fits, 3, '; or ')}"
        # a factor with noise beside it is reported as one, and not as weights that are all the same
        beside = float(np.linalg.norm(self._rest - (self.scale - 1) * self._right)) if self.along else whole
        return self._describe_weights() if within and self._left <= WITHIN * beside else None

    def _fitting(self) -> list[str]:
        """Return the known mistakes that explain the gradient, as text; those whose factor is known come first.

        The right weights explain it only by a factor: what they leave without one is not due to weights.
        """
        fits: list[tuple[float, Mistake, float, Floats]] = []
        for mistake in mistakes(self._target):
            shape = mistake.weights @ self._parts
            size = float(shape @ shape)
            scale = float(self._sketch @ shape) / size if size else 0.0
            weights = scale * mistake.weights
            misfit = self._misfit(weights)
            known = any(np.abs(weights - other).max() <= ALIKE * np.abs(weights).max() for *_, other in fits)
            if misfit <= self._limit and not known:
                fits.append((misfit, mistake, scale, weights))
        allowed = max(3 * min((misfit for misfit, *_ in fits), default=0.0), self._tolerance)
        fits = [fit for fit in fits if fit[0] <= allowed and (fit[1].words or self.along)]
        described = [self._describe(mistake, scale) for _, mistake, scale, _ in fits]
        return [words for _, words in sorted(described, key=lambda each: not each[0])]

    def _describe(self, mistake: Mistake, scale: float) -> tuple[bool, str]:
        return mistake.describe(scale, factors(self._target), min(0.05, max(1e-6, 3 * self._limit)))

    def _misfit(self, weights: Floats) -> float:
        """Return what ``weights`` leave of the gradient, over the size of all that they add up."""
        size = float(np.abs(weights) @ self._sizes)
        return float(np.linalg.norm(self._sketch - weights @ self._parts)) / size if size else float("inf")

    def _describe_weights(self) -> str | None:
        """Return the least-squares weights as text; None where they explain nothing or no part's is clearly wrong."""
        num_parts, num_coordinates = self._parts.shape
        unit, total = self._target.unit, self._target.total
        start = f"the right {unit}, weighted wrongly; in units of the right weight, "
        if 2 * num_parts > num_coordinates:  # so many weights explain anything
            single = self._describe_single()
            return single and f"{start}{single} (all others 1)"
        if self._misfit(self.weights) > self._limit:
            return None
        relative = self.weights * total
        apart, noise = np.abs(relative - 1), self._left / (num_coordinates - num_parts) ** 0.5
        odd = (np.abs(self._change) > CLEAR * noise) & (apart > max(self._tolerance, 0.01 * apart.max()))
        if not odd.any():
            return None
        if not self._sizes.all() or np.linalg.cond((self._parts / self._sizes[:, None]).T) * self._limit > 0.02:
            return f"the right {unit} with wrong weights; whose cannot be determined, as their gradients are alike"
        wrong = np.flatnonzero(odd).tolist()
        words = first_few(f"{self._name(m)}: {_weight(relative[m], noise * total / self._sizes[m])}" for m in wrong)
        return f"{start}{words}{'' if odd.all() else ' (all others 1)'}"

    def _describe_single(self) -> str | None:
        """Return the one part whose gradient, times a number, is all of the difference; None where there is none."""
        whole = float(np.linalg.norm(self._rest))
        alike = self._parts @ self._rest / np.where(self._sizes > 0, self._sizes * whole, 1.0)
        m = int(np.argmax(np.abs(alike)))
        left = max(0.0, 1 - float(alike[m]) ** 2) ** 0.5
        if len(self._rest) < SEVERAL or left > ALONE:
            return None
        relative = 1 + self._target.total * float(alike[m]) * whole / float(self._sizes[m])
        words = f"{self._name(m)}: {_weight(relative, left * abs(relative - 1))}"
        others = [self._name(k) for k in np.flatnonzero(np.abs(alike) > ALIKE_PARTS).tolist() if k != m]
        return f"{words} (or another weight of {first_few(others, 3)}, whose gradient is alike)" if others else words

    def _name(self, m: int) -> str:
        if self._target.names:
            return self._target.names[m]
        ranks = self._target.ranks
        return f"micro-batch {np.sum(ranks[:m] == ranks[m])} of rank {ranks[m]}"

    def describe_lost(self) -> Cause:
        """Return what is lost, and what else is wrong at the parameters that have lost nothing.

        Zeros may be those of a single lost sample, where no other reaches these coordinates; None may not.
        """
        slices, words = self._target.slices, []
        whole = [name for name, count in self.lost.items() if count is None]
        none = bool(whole) and all(name in self._missing for name in whole)
        if whole:
            what = "None" if none else "0 everywhere"
            reach = f"though the losses of the {self._target.unit} reach it"
            words.append(f"the gradient{_of(whole)} is missing: {what}, {reach}")
        for name, count in self.lost.items():
            if count is not None:
                size = slices[name].stop - slices[name].start
                words.append(f"the gradient{_of([name])} is missing at {count:,} of its {size:,} coordinates")
        others = [name for name in slices if name not in self.lost]
        if others and (rest := self._at(others)).error > self._tolerance:
            words.append(f"at all other parameters: {rest.cause()[0]}")
        return "; ".join(words), "known" if none else "placed"

    def _at(self, names: Collection[str]) -> "Difference":
        target, gradient = self._target.restrict(names, self._gradient)
        return Difference(gradient, target, self._tolerance, self._missing)

    def _unexplained(self) -> str:
        """Return what a difference may be that is no weighting, no factor, and not at some parameters alone."""
        evidence = rounding(self._sketch, self._target)
        if evidence is not None:
            return evidence
        if self.error < NEARLY:
            place = self.where_most()
            return (
                f"unexplained{f' ({place})' if place else ''}: nearly the target, but neither weights of its samples "
                "nor a factor, and nothing shows that it is rounding; may be a lost token, row or part, another loss "
                "(label smoothing), a term added to the gradient (weight decay), slightly different weights of the "
                "model, or values clipped one by one"
            )
        return (
            "not a combination of these samples' gradients: another batch (a stale plan), dropout, other weights of "
            "the model, or values clipped one by one"
        )


def _of(names: Sequence[str]) -> str:
    return f" of {first_few(names, 3)}" if any(names) else ""


def _weight(relative: float, noise: float) -> str:
    """Return a part's weight, in units of the right one, to the digits that the noise leaves."""
    if abs(relative - 1) < 1e-3:
        return times(relative)
    digits = int(np.clip(-np.log10(30 * noise), 0, 4)) if noise else 4
    return f"{round(float(relative), digits) + 0.0:g}"
