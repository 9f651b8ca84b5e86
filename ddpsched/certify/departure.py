"""Where a gradient departs from its target: at which parameters, at which coordinates, or along the target.

A sum over all coordinates says how far two gradients are apart and not where. A parameter whose gradient is lost may
weigh little in it, and what lower precision leaves may weigh as much: it is the place and the shape that tell them
apart.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from ddpsched.certify.certificate import first_few
from ddpsched.certify.target import Floats, Target

PIECE = 2**22  # coordinates at a time, as these vectors are as large as a model
SEVERAL = 16  # nonzero coordinates that do not all come out as 0 by chance, even where they are rounding themselves
CLEAR = 10  # how many times the noise, or what is tolerated, a number must be not to be 0 by accident
RIGHT = 0.03  # parameters whose own error is this share of the others' are right where those are wrong
ALONG = 0.1  # a difference with this share, or less, across the target's direction lies along it
MOSTLY = 1 / 3  # the same, where what lies across is within the tolerance
MOST, FEW = 0.9, 0.05  # a difference is concentrated where so much of it is at so few coordinates


@dataclass(frozen=True, eq=False)
class Sums:
    """Of each parameter, (num_parameters,): sums of squares of what was found, of the target, and of their difference,
    and of the products of both; ``present``: coordinates at which the target is not 0, ``zeros``: those of them at
    which 0 was found.
    """

    found: Floats
    target: Floats
    apart: Floats
    products: Floats
    present: Floats
    zeros: Floats

    @classmethod
    def of(cls, found: Floats, target: Target) -> "Sums":
        rows = np.zeros((6, len(target.slices)))
        for number, own in enumerate(target.slices.values()):
            for f, t in _pieces(found, target.gradient, own):
                rows[:, number] += (
                    f @ f, t @ t, (f - t) @ (f - t), f @ t, np.count_nonzero(t), np.count_nonzero((f == 0) & (t != 0)),
                )  # fmt: skip
        return cls(*rows)

    @property
    def size(self) -> float:
        """|target|."""
        return float(self.target.sum()) ** 0.5

    @property
    def numbers(self) -> tuple[float, float, float]:
        """Relative error, cosine, best scale; NaN of a loss of nothing, as every multiple of its gradient is it."""
        ff, tt = float(self.found.sum()), float(self.target.sum())
        apart, ft = float(self.apart.sum()), float(self.products.sum())
        if tt == 0:
            return float("nan"), float("nan"), float("nan")
        return (apart / tt) ** 0.5, ft / (ff * tt) ** 0.5 if ff else 0.0, ft / tt


@dataclass(frozen=True)
class Lost:
    """``parameters`` that have no gradient where the target has one; ``coordinates``: of others, how many of its
    coordinates have none, by name.
    """

    parameters: tuple[str, ...]
    coordinates: dict[str, int]

    def __bool__(self) -> bool:
        return bool(self.parameters or self.coordinates)


def _pieces(found: Floats, target: Floats, where: slice) -> Iterator[tuple[Floats, Floats]]:
    for start in range(where.start, where.stop, PIECE):
        piece = slice(start, min(start + PIECE, where.stop))
        yield found[piece].astype(np.float64), target[piece].astype(np.float64)


def lost(found: Floats, target: Target, sums: Sums, tolerance: float, missing: Collection[str] = ()) -> Lost:
    """What has no gradient though samples' losses reach it. ``missing``: parameters whose ``grad`` is None.

    A zero among numbers is exact, and no rounding makes one of a number that is itself more than rounding.
    """
    floor = np.finfo(target.gradient.dtype).eps * sums.size * target.cancellation
    least = np.finfo(target.gradient.dtype).tiny / np.finfo(target.gradient.dtype).eps  # above what underflows
    parameters, coordinates = [], {}
    for number, (name, own) in enumerate(target.slices.items()):
        present, zeros, size = sums.present[number], sums.zeros[number], sums.target[number] ** 0.5
        if not zeros:
            continue
        if sums.found[number] == 0:
            if name in missing or size > floor or (present >= SEVERAL and size > least):
                parameters.append(name)
        elif size > floor:
            count = _not_by_accident(found, target, own, sums.apart[number], tolerance * size)
            if count:
                coordinates[name] = count
    return Lost(tuple(parameters), coordinates)


def _not_by_accident(found: Floats, target: Target, where: slice, apart: float, tolerated: float) -> int:
    """Zeros of a parameter where the target is far above what else sets them apart. ``apart``: the sum of its squares;
    ``tolerated``: a norm.
    """
    at_zeros = sum(float(np.sum(t[f == 0] ** 2)) for f, t in _pieces(found, target.gradient, where))
    noise = max(0.0, apart - at_zeros) ** 0.5
    least = CLEAR * max(noise, tolerated) / (where.stop - where.start) ** 0.5
    pieces = _pieces(found, target.gradient, where)
    return sum(int(np.count_nonzero((f == 0) & (np.abs(t) > least))) for f, t in pieces)


def wrong_parameters(target: Target, sums: Sums, tolerance: float) -> list[str]:
    """Those that hold all of the difference, where there are others whose gradient is right; else none."""
    with np.errstate(divide="ignore", invalid="ignore"):
        own = np.where(sums.apart > 0, sums.apart / sums.target, 0.0)  # squares of each one's relative error
    order = np.argsort(-sums.apart)
    rest = sums.apart.sum() - np.cumsum(sums.apart[order])
    allowed = max(tolerance**2 * sums.target.sum(), RIGHT**2 * sums.apart.sum())
    wrong = order[: int(np.argmax(rest <= allowed)) + 1]
    others = np.setdiff1d(order, wrong)
    right = others[(sums.target[others] > 0) & (own[others] <= RIGHT**2 * own[wrong].min())]
    if sums.present[right].sum() < SEVERAL:
        return []
    return [name for number, name in enumerate(target.slices) if number in wrong]


def lies_along(found: Floats, target: Target, sums: Sums, scale: float, tolerance: float) -> bool:
    """Whether the difference is ``scale - 1`` times the target, but for little, or for what is tolerated."""
    across = 0.0
    for own in target.slices.values():
        for f, t in _pieces(found, target.gradient, own):
            across += float((f - scale * t) @ (f - scale * t))
    apart = float(sums.apart.sum())
    return across <= max(ALONG**2 * apart, min(MOSTLY**2 * apart, tolerance**2 * float(sums.target.sum())))


def where_most(sketch: Floats, target: Target, sums: Sums) -> str:
    """Where most of the difference lies, in words; "" where it is spread.

    >>> gradient = np.ones(100)
    >>> target = Target(gradient, gradient[None], np.arange(100), np.array([1]), np.array([0]), parameters={"w": 100})
    >>> found = gradient + (np.arange(100) < 2)
    >>> where_most(found, target, Sums.of(found, target))
    'most of it at 2 of the 100 coordinates looked at'
    """
    told = []
    order = np.argsort(-sums.apart)
    needed = int(np.searchsorted(np.cumsum(sums.apart[order]), MOST * sums.apart.sum())) + 1
    names = list(target.slices)
    size = sum(target.slices[names[number]].stop - target.slices[names[number]].start for number in order[:needed])
    if needed < len(names) and size <= 0.5 * len(target.gradient):
        told.append(first_few([names[number] for number in order[:needed]], 3))
    squares = np.sort((sketch - target.gradient[target.coordinates]) ** 2)[::-1]
    count = int(np.searchsorted(np.cumsum(squares), MOST * squares.sum())) + 1
    if count <= FEW * len(squares):
        told.append(f"{count:,} of the {len(squares):,} coordinates looked at")
    return f"most of it at {', '.join(told)}" if told else ""
