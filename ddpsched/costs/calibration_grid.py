"""The grid of (count, length) that a calibration measures, and the points held out of its fit."""

from dataclasses import dataclass
from itertools import product

COUNT_RATIO, LENGTH_RATIO = 2.0, 2**0.5
SHORTEST = 4  # tokens


@dataclass(frozen=True, order=True)
class GridPoint:
    """One point; those ``held_out`` are measured like the others and left out of the fit."""

    count: int
    length: int
    held_out: bool


def calibration_grid(max_count: int, max_length: int, max_tokens: int) -> list[GridPoint]:
    """Return counts 1..``max_count`` by lengths 4..``max_length``, both geometric, the fewest tokens first.

    Products over ``max_tokens`` are left out, except a single sample's, so every length is included. Every third point
    is held out, in diagonals, so that each count and each length is in the fit; the corners of the grid never are.

    >>> [(p.count, p.length) for p in calibration_grid(2, 8, 12)]
    [(1, 4), (1, 6), (1, 8), (2, 4), (2, 6)]
    """
    counts = _geometric(1, max_count, COUNT_RATIO)
    lengths = _geometric(min(SHORTEST, max_length), max_length, LENGTH_RATIO)
    indices = product(range(len(counts)), range(len(lengths)))
    cells = [(i, j) for i, j in indices if i == 0 or counts[i] * lengths[j] <= max_tokens]
    corners: set[tuple[int, int]] = set()  # of the grid, without which a fit would extrapolate
    for axis, end in product((0, 1), (min, max)):
        outermost = end(cell[axis] for cell in cells)
        line = [cell for cell in cells if cell[axis] == outermost]
        corners |= {min(line), max(line)}
    points = [GridPoint(counts[i], lengths[j], (i + j) % 3 == 1 and (i, j) not in corners) for i, j in cells]
    return sorted(points, key=lambda p: (p.count * p.length, p.count))


def _geometric(first: int, last: int, ratio: float) -> list[int]:
    """Return whole numbers from first to last, each about ``ratio`` times the one before."""
    numbers, value = {first, last}, float(first)
    while round(value) < last:
        numbers.add(round(value))
        value *= ratio
    return sorted(numbers)
