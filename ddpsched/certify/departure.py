"""Where a gradient differs from its target: at which parameters, at which coordinates, or along the target.

A sum over all coordinates says by how much two gradients differ and not where. A parameter whose gradient is lost may
weigh as little in that sum as the rounding of a lower precision. The place and the shape of the difference tell them
apart.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from ddpsched.certify.certificate import first_few
from ddpsched.certify.target import Floats, Target

PIECE = 2**22  # coordinates at a time, as these vectors are as large as a model
SEVERAL = 16  # nonzero coordinates that do not all become 0 by chance, even where they are rounding themselves
CLEAR = 10  # how many times the noise, or the tolerance, a number must be not to be 0 by accident
RIGHT = 0.03  # parameters whose relative error is this share of the others' are right where those are wrong
ALONG = 0.1  # a difference with this share, or less, across the target's direction lies along it
MOSTLY = 1 / 3  # the same, where the part across is within the tolerance
MOST, FEW = 0.9, 0.05  # a difference is concentrated where so much of it is at so few coordinates


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums over the coordinates of each parameter, each (num_parameters,).

    ``gradient``, ``target``, ``apart``: sums of squares of the gradient, of the target and of their difference.
    ``products``: sum of gradient times target. ``present``: coordinates at which the target is not 0. ``zeros``: those
    of them at which the gradient is 0.
    """

    gradient: Floats
    target: Floats
    apart: Floats
    products: Floats
    present: Floats
    zeros: Floats

    @classmethod
    def of(cls, gradient: Floats, target: Target) -> "Sums":
        """Return the sums of a gradient, (P,), and its target."""
        rows = np.zeros((6, len(target.slices)))
        for row, place in zip(rows.T, target.slices.values(), strict=True):
            for g, t in _pieces(gradient, target.gradient, place):
                zeros = np.count_nonzero((g == 0) & (t != 0))
                row += g @ g, t @ t, (g - t) @ (g - t), g @ t, np.count_nonzero(t), zeros
        return cls(*rows)

    @property
    def numbers(self) -> tuple[float, float, float]:
        """Relative error, cosine and best scale; NaN where the target is 0, as every multiple of it is the same."""
        gg, tt = float(self.gradient.sum()), float(self.target.sum())
        apart, gt = float(self.apart.sum()), float(self.products.sum())
        if tt == 0:
            return float("nan"), float("nan"), float("nan")
        return (apart / tt) ** 0.5, gt / (gg * tt) ** 0.5 if gg else 0.0, gt / tt


def _pieces(gradient: Floats, target: Floats, place: slice) -> Iterator[tuple[Floats, Floats]]:
    for start in range(place.start, place.stop, PIECE):
        piece = slice(start, min(start + PIECE, place.stop))
        yield gradient[piece].astype(np.float64), target[piece].astype(np.float64)


def lost(
    gradient: Floats, target: Target, sums: Sums, tolerance: float, missing: Collection[str] = ()
) -> dict[str, int | None]:
    """Return how many coordinates have no gradient although samples' losses reach them, by parameter; None: all.

    ``missing``: parameters whose ``grad`` is None. Rounding turns no number into an exact 0, unless the number is
    itself no more than rounding.
    """
    kind = np.finfo(target.gradient.dtype)
    floor = kind.eps * float(sums.target.sum()) ** 0.5 * target.cancellation
    least = kind.tiny / kind.eps  # above what underflows
    counts: dict[str, int | None] = {}
    for i, (name, place) in enumerate(target.slices.items()):
        size = sums.target[i] ** 0.5
        if sums.zeros[i] and sums.gradient[i] == 0:
            if name in missing or size > floor or (sums.present[i] >= SEVERAL and size > least):
                counts[name] = None
        elif sums.zeros[i] and size > floor:
            count = _clear_zeros(gradient, target, place, sums.apart[i], tolerance * size)
            if count:
                counts[name] = count
    return counts


def _clear_zeros(gradient: Floats, target: Target, place: slice, apart: float, tolerated: float) -> int:
    """Return the number of a parameter's zeros where the target is far above the rest of the difference.

    ``apart``: sum of squares of the parameter's difference; ``tolerated``: a norm.
    """
    at_zeros = sum(float(np.sum(t[g == 0] ** 2)) for g, t in _pieces(gradient, target.gradient, place))
    noise = max(0.0, apart - at_zeros) ** 0.5
    least = CLEAR * max(noise, tolerated) / (place.stop - place.start) ** 0.5
    pieces = _pieces(gradient, target.gradient, place)
    return sum(int(np.count_nonzero((g == 0) & (np.abs(t) > least))) for g, t in pieces)


def wrong_parameters(target: Target, sums: Sums, tolerance: float) -> list[str]:
    """Return the parameters that hold all of the difference; none where no others' gradient is right."""
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = np.where(sums.apart > 0, sums.apart / sums.target, 0.0)  # squared relative errors
    order = np.argsort(-sums.apart)
    rest = sums.apart.sum() - np.cumsum(sums.apart[order])
    allowed = max(tolerance**2 * sums.target.sum(), RIGHT**2 * sums.apart.sum())
    wrong, others = np.split(order, [int(np.argmax(rest <= allowed)) + 1])
    right = others[(sums.target[others] > 0) & (errors[others] <= RIGHT**2 * errors[wrong].min())]
    if sums.present[right].sum() < SEVERAL:
        return []
    return [name for i, name in enumerate(target.slices) if i in wrong]


def lies_along(gradient: Floats, target: Target, sums: Sums, scale: float, tolerance: float) -> bool:
    """Return whether the difference is ``scale - 1`` times the target, up to a little or to what is tolerated."""
    across = 0.0
    for place in target.slices.values():
        for g, t in _pieces(gradient, target.gradient, place):
            across += float((g - scale * t) @ (g - scale * t))
    apart = float(sums.apart.sum())
    return across <= max(ALONG**2 * apart, min(MOSTLY**2 * apart, tolerance**2 * float(sums.target.sum())))


def where_most(sketch: Floats, target: Target, sums: Sums) -> str:
    """Return where most of the difference lies, as text; "" where it is spread. ``sketch``: (S,).

    >>> gradient = np.ones(100)
    >>> target = Target(gradient, gradient[None], np.arange(100), np.array([1]), np.array([0]), parameters={"w": 100})
    >>> wrong = gradient + (np.arange(100) < 2)
    >>> where_most(wrong, target, Sums.of(wrong, target))
    'most of it at 2 of the 100 coordinates looked at'
    """
    places, slices = [], list(target.slices.items())
    largest = [slices[i] for i in np.argsort(-sums.apart)[: _most(sums.apart)]]
    if len(largest) < len(slices) and sum(s.stop - s.start for _, s in largest) <= 0.5 * len(target.gradient):
        places.append(first_few([name for name, _ in largest], 3))
    squares = (sketch - target.gradient[target.coordinates]) ** 2
    count = _most(squares)
    if count <= FEW * len(squares):
        places.append(f"{count:,} of the {len(squares):,} coordinates looked at")
    return f"most of it at {', '.join(places)}" if places else ""


def _most(squares: Floats) -> int:
    """Return how many of the largest add up to most of the sum."""
    return int(np.searchsorted(np.cumsum(np.sort(squares)[::-1]), MOST * squares.sum())) + 1
