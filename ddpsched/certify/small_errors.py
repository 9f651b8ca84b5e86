"""Errors that the norm over all parameters does not show: a factor within the tolerance, and single parameters.

A parameter whose gradient is a millionth of the whole may be wrong altogether within a tolerance of 1e-6. Its own
relative error shows that, but also shows rounding where the target itself is no more than that, as of the bias of an
attention's keys. So a parameter is called wrong where it departs from the target by far more than the target changes
when each weight changes by its last bit (``again``).
"""

from collections.abc import Callable

import numpy as np

from ddpsched.certify.causes import Departure
from ddpsched.certify.target import Floats, Target

FACTOR = 0.5  # of the tolerance is no rounding where all of the difference is one factor
APART = 30  # times the tolerance is the relative error from which a parameter is looked at
CLEAR = 10  # times what the last bit changes


def has_factor(departure: Departure, tolerance: float) -> bool:
    """Return whether the gradient is a multiple of the target, however near to 1."""
    return departure.along and abs(departure.scale - 1) > FACTOR * tolerance


def wrong_alone(
    departure: Departure, target: Target, tolerance: float, again: Callable[[], Floats] | None
) -> list[str]:
    """Return the parameters whose own gradient is wrong; none where ``again`` is None."""
    odd = departure.errors > APART * tolerance
    if again is None or not odd.any():
        return []
    other = again()
    wrong = []
    for name, place, apart, is_odd in zip(target.slices, target.slices.values(), departure.apart, odd, strict=True):
        if is_odd:
            right = target.gradient[place].astype(np.float64)
            noise = float(np.linalg.norm(other[place].astype(np.float64) - right))
            least = float(np.finfo(target.gradient.dtype).eps) * float(np.linalg.norm(right))
            if apart**0.5 > CLEAR * max(noise, least):
                wrong.append(name)
    return wrong
