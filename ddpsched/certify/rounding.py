"""Whether a difference is rounding: said on evidence of some number format alone, and not because nothing else fits.

Evidence is either that what was found are numbers of a shorter format, or sums of a few, and lie as near the target as
that format allows; or that at every coordinate the difference is about as large as the format's unit of what is added
up there, nowhere far larger or mostly far smaller, and has no direction. A lost token, another loss or a term added to
the gradient is as small as rounding in the whole, but not in this way at each coordinate.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ddpsched.certify.target import Floats, Target

LITTLE = 1e-5  # of the average; where less is added up, it is others' rounding that is seen
FEWEST = 16  # coordinates that tell rounding from chance
SHORT = 0.9  # of the numbers found are short where a format left them
NEAR, NEAR_SHORTEST = 256, 4  # units that a number of float32, or of 16 bits, is from the right one, at most
SIZES = (0.2, 8)  # of the difference in units, on average; measured: 0.3 to 4
LARGEST = 16  # units, but for one coordinate in a thousand
EVEN = 0.2  # of the average is what the middle one has at least; rounding has 0.5, a lost token 0.04
PEAKED = 15  # fourth moment over the square of the second: rounding has 5 to 10, a lost token 40 and more
DIRECTED = 0.25  # cosine with the target, each coordinate in its own unit


@dataclass(frozen=True)
class Format:
    """``bits`` of its mantissa; ``sums``: more bits that a sum of a few numbers of it has."""

    name: str
    bits: int
    sums: int

    @property
    def unit(self) -> float:
        return 2.0**-self.bits


FORMATS = (Format("float32", 24, 20), Format("float16", 11, 4), Format("bfloat16", 8, 4))


def rounding(sketch: Floats, target: Target) -> str | None:
    """What shows that ``sketch``, found at ``target.coordinates``, is the target but for rounding; None: nothing."""
    right = target.gradient[target.coordinates].astype(np.float64)
    parts = np.asarray(target.parts, dtype=np.float64) / (target.total or 1.0)
    scale = np.sqrt((parts**2).sum(axis=0) + right**2)  # what rounds, each part and the sum, independently
    size, apart, reached = float(np.sqrt(np.mean(scale**2))), sketch - right, scale > 0
    present = scale > LITTLE * size
    if apart[~reached].any() or np.count_nonzero(present) < max(FEWEST, 0.25 * np.count_nonzero(reached)):
        return None
    most = float(np.max(np.abs(apart), where=~present, initial=0.0))  # what rounding leaves of sums that are 0
    apart, scale, sketch, right = apart[present], scale[present], sketch[present], right[present]
    own = np.finfo(target.gradient.dtype).nmant + 1
    for each in FORMATS:
        if (
            own > each.bits + each.sums
            and most <= each.unit * size
            and _near(apart / scale, each)
            and _short(sketch, right, each)
        ):
            return (
                "rounding: computed, or added up, in a lower precision; what was found are numbers of "
                f"{each.name}{' (a 16-bit format)' if each.bits < 16 else ''}, or sums of a few, and as near as it "
                "leaves them"
            )
    for each in FORMATS:
        if most <= each.unit * size and _like_noise(apart / scale / each.unit, right / scale):
            whose = "in a lower precision" if own > each.bits else "in its own precision, where much cancels"
            name = each.name if each.bits > 16 else "a 16-bit format"
            return (
                f"rounding: computed, or added up, {whose}; what is left lies in no direction, is at each coordinate "
                f"in proportion to what is added up there, and is as large as {name} leaves it"
            )
    return None


def _near(relative: Floats, each: Format) -> bool:
    return bool(np.mean(np.abs(relative) <= (NEAR if each.bits > 16 else NEAR_SHORTEST) * each.unit) >= 0.999)


def _short(found: Floats, right: Floats, each: Format) -> bool:
    """Whether these are numbers of few bits where the right ones are not."""
    return _share_of_short(found, each) >= SHORT and _share_of_short(right, each) < 0.5


def _share_of_short(numbers: Floats, each: Format) -> float:
    given = numbers[numbers != 0]
    if len(given) < FEWEST:
        return 0.0
    mantissa: Any = np.ldexp(np.frexp(given)[0], each.bits + each.sums)
    return float(np.mean(mantissa == np.round(mantissa)))


def _like_noise(units: Floats, direction: Floats) -> bool:
    squares = units**2
    mean = float(squares.mean())
    if not SIZES[0] <= mean**0.5 <= SIZES[1] or np.mean(squares <= LARGEST**2) < 0.999:
        return False
    even = float(np.median(np.abs(units))) >= EVEN * mean**0.5 and float((squares**2).mean()) <= PEAKED * mean**2
    along = abs(float(units @ direction)) / (float(np.linalg.norm(units)) * float(np.linalg.norm(direction)) or 1.0)
    return even and along <= max(DIRECTED, 3 / len(units) ** 0.5)
