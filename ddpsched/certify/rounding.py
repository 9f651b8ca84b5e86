"""Evidence that a difference is rounding, found in number formats; that nothing else fits is no evidence.

There are two kinds of evidence. Either the gradient consists of numbers of a shorter format, or of sums of a few of
them, and lies as near the target as that format allows. Or at every coordinate the difference is about as large as the
format's unit of what is added up there, nowhere far larger or mostly far smaller, and has no direction. A lost token,
another loss or a term added to the gradient is as small as rounding in total, but not in this way at each coordinate.
"""

import numpy as np

from ddpsched.certify.target import Floats, Target

LITTLE = 1e-5  # of the average; where less is added up, the rounding of other numbers is seen
FEWEST = 16  # coordinates that distinguish rounding from chance
SHORT = 0.9  # share of the gradient's numbers that are short where a format left them
NEAR, NEAR_SHORTEST = 256, 4  # units that a number of float32, or of 16 bits, is from the right one, at most
SIZES = (0.2, 8)  # of the difference in units, on average; measured: 0.3 to 4
LARGEST = 16  # units, but for one coordinate in a thousand
EVEN = 0.2  # of the average is the least median; rounding has 0.5, a lost token 0.04
PEAKED = 15  # fourth moment over the square of the second: rounding has 5 to 10, a lost token 40 and more
DIRECTED = 0.25  # cosine with the target, each coordinate in its own unit
# name; bits of the mantissa; more bits that a sum of a few such numbers has
FORMATS = (("float32", 24, 20), ("float16", 11, 4), ("bfloat16", 8, 4))


def rounding(sketch: Floats, target: Target) -> str | None:
    """Return the evidence that ``sketch``, (S,), is the target up to rounding; None where there is none."""
    right = target.gradient[target.coordinates].astype(np.float64)
    parts = np.asarray(target.parts, dtype=np.float64) / (target.total or 1.0)
    scale = np.sqrt((parts**2).sum(axis=0) + right**2)  # what rounds, each part and the sum, independently
    size, apart, reached = float(np.sqrt(np.mean(scale**2))), sketch - right, scale > 0
    present = scale > LITTLE * size
    if apart[~reached].any() or np.count_nonzero(present) < max(FEWEST, 0.25 * np.count_nonzero(reached)):
        return None
    most = float(np.max(np.abs(apart), where=~present, initial=0.0))  # what rounding leaves of sums that are 0
    formats = [(name, bits, bits + more) for name, bits, more in FORMATS if most <= 2.0**-bits * size]
    apart, scale, sketch, right = apart[present], scale[present], sketch[present], right[present]
    precision = np.finfo(target.gradient.dtype).nmant + 1
    for name, bits, summed in formats:
        nearest = (NEAR if bits > 16 else NEAR_SHORTEST) * 2.0**-bits
        near = precision > summed and np.mean(np.abs(apart / scale) <= nearest) >= 0.999
        if near and _share_of_short(sketch, summed) >= SHORT and _share_of_short(right, summed) < 0.5:
            return (
                "rounding: computed, or added up, in a lower precision; the gradient's numbers are numbers of "
                f"{name}{' (a 16-bit format)' if bits < 16 else ''}, or sums of a few, and as near the target as it "
                "allows"
            )
    for name, bits, _ in formats:
        if _like_noise(apart / scale * 2.0**bits, right / scale):
            where = "in a lower precision" if precision > bits else "in its own precision, where much cancels"
            return (
                f"rounding: computed, or added up, {where}; the difference has no direction, is at each coordinate in "
                f"proportion to what is added up there, and is as large as {name if bits > 16 else 'a 16-bit format'} "
                "leaves it"
            )
    return None


def _share_of_short(numbers: Floats, bits: int) -> float:
    """Return the share of nonzero numbers whose mantissa has at most so many bits; 0 where they are few."""
    nonzero = numbers[numbers != 0]
    if len(nonzero) < FEWEST:
        return 0.0
    mantissa = np.ldexp(np.frexp(nonzero)[0], bits)
    return float(np.mean(mantissa == np.round(mantissa)))


def _like_noise(units: Floats, direction: Floats) -> bool:
    """Return whether a difference, in units of the format, is as large as rounding, spread evenly, and undirected."""
    squares = units**2
    mean = float(squares.mean())
    if not SIZES[0] <= mean**0.5 <= SIZES[1] or np.mean(squares <= LARGEST**2) < 0.999:
        return False
    even = float(np.median(np.abs(units))) >= EVEN * mean**0.5 and float((squares**2).mean()) <= PEAKED * mean**2
    along = abs(float(units @ direction)) / (float(np.linalg.norm(units)) * float(np.linalg.norm(direction)) or 1.0)
    return even and along <= max(DIRECTED, 3 / len(units) ** 0.5)
