"""Which (count, length) a calibration measures, and which of them judge its fit."""

from dataclasses import dataclass

COUNT_RATIO, LENGTH_RATIO = 2.0, 2**0.5
SHORTEST = 4  # tokens


@dataclass(frozen=True, order=True)
class GridPoint:
    """``held_out`` points are measured like the others and left out of the fit."""

    count: int
    length: int
    held_out: bool


def calibration_grid(max_count: int, max_length: int, max_tokens: int) -> list[GridPoint]:
    """Counts 1..``max_count`` by lengths 4..``max_length``, both geometric, the fewest tokens first.

    Products over ``max_tokens`` are left out, but for a single sample's: every length
    is there. Every third point is held out, in diagonals, so that each count and
    each length is in the fit; the corners of the grid never are.

    >>> [(p.count, p.length) for p in calibration_grid(2, 8, 12)]
    [(1, 4), (1, 6), (1, 8), (2, 4), (2, 6)]
    """
    counts = _geometric(1, max_count, COUNT_RATIO)
    lengths = _geometric(min(SHORTEST, max_length), max_length, LENGTH_RATIO)
    cells = [
        (i, j)
        for i, count in enumerate(counts)
        for j, length in enumerate(lengths)
        if i == 0 or count * length <= max_tokens
    ]
    ends = _ends(cells)
    found = [GridPoint(counts[i], lengths[j], (i + j) % 3 == 1 and (i, j) not in ends) for i, j in cells]
    return sorted(found, key=lambda p: (p.count * p.length, p.count))


def _ends(cells: list[tuple[int, int]]) -> set[tuple[int, int]]:
    """The corners: first and last cell of the outermost rows and columns. Without them a fit would have to guess."""
    found: set[tuple[int, int]] = set()
    for axis in (0, 1):
        places = {cell[axis] for cell in cells}
        for place in (min(places), max(places)):
            row = [cell for cell in cells if cell[axis] == place]
            found |= {min(row), max(row)}
    return found


def _geometric(first: int, last: int, ratio: float) -> list[int]:
    """Whole numbers from first to last, each about ``ratio`` times the one before."""
    found, value = {first, last}, float(first)
    while round(value) < last:
        found.add(round(value))
        value *= ratio
    return sorted(found)
