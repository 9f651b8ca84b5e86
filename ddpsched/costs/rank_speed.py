"""How fast this rank really is, measured while it trains."""

from collections import deque
from statistics import median
from typing import TypeVar

import numpy as np
import numpy.typing as npt

AS_CALIBRATED = 10**6  # parts per million
WINDOW = 5  # steps: 3 of them are a majority, 2 are not


Cost = TypeVar("Cost", int, npt.NDArray[np.int64])


def slowed(cost: Cost, slowness_ppm: int) -> Cost:
    """Return ``cost``, a number or an array of them, on a rank of this slowness, rounded up."""
    return -(-cost * slowness_ppm // AS_CALIBRATED)


class Speed:
    """A rank's slowness against its cost model, in parts per million: 2,000,000 takes twice the time predicted.

    The median of the last five steps' measured / predicted, where a rank that has not
    yet run counts as five steps as predicted. So a rank that turns slow is known after
    three steps, and one or two odd steps (the first, a page cache, a neighbour) move it
    no further than its other steps lie apart.

    ``add`` is for the one thread that trains; any other thread may read ``slowness_ppm``,
    a whole number that is replaced at once.

    >>> speed = Speed()
    >>> for _ in range(3):
    ...     speed.add(predicted_ns=1_000_000, measured_s=2e-3)
    >>> speed.slowness_ppm
    2000000
    """

    def __init__(self) -> None:
        self._recent = deque([float(AS_CALIBRATED)] * WINDOW, maxlen=WINDOW)
        self.slowness_ppm = AS_CALIBRATED

    def add(self, predicted_ns: int, measured_s: float) -> None:
        """Feed one step: what all of its micro-batches were predicted to take, and took.

        A step without samples, or a time that is not positive, says nothing.
        """
        if predicted_ns > 0 and 0 < measured_s < float("inf"):
            self._recent.append(measured_s * 1e9 / predicted_ns * AS_CALIBRATED)
            self.slowness_ppm = max(1, round(median(self._recent)))
