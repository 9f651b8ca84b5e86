"""The speed of a rank, measured while it trains."""

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import TypeVar

import numpy as np
import numpy.typing as npt

AS_CALIBRATED = 10**6  # parts per million
WINDOW = 5  # steps: 3 of them are a majority, 2 are not


Cost = TypeVar("Cost", int, npt.NDArray[np.int64])


def slowed(cost: Cost, slowness_ppm: int) -> Cost:
    """Return ``cost``, a number or an array of them, on a rank of this slowness in parts per million, rounded up."""
    return -(-cost * slowness_ppm // AS_CALIBRATED)


class Speed:
    """A rank's slowness relative to its cost model, in parts per million: 2,000,000 takes twice the time predicted.

    It is the median of the last five steps' measured / predicted; a rank that has not yet run counts as five steps as
    predicted. So a rank that turns slow is noticed after three steps, and one or two odd steps (the first, a page
    cache, another process) move it no further than its other steps differ.

    Only the training thread may call ``add``; any thread may read ``slowness_ppm``, an integer replaced at once.

    >>> speed = Speed()
    >>> for _ in range(3):
    ...     speed.add(predicted_ns=1_000_000, measured_s=2e-3)
    >>> speed.slowness_ppm
    2000000
    """

    def __init__(self) -> None:
        self._recent = deque([float(AS_CALIBRATED)] * WINDOW, maxlen=WINDOW)
        self.slowness_ppm = AS_CALIBRATED

    @classmethod
    def constant(cls, slowness: float) -> "Speed":
        """Return the speed of a rank that takes ``slowness`` times as long as its cost model says."""
        speed = cls()
        speed.restore([slowness * AS_CALIBRATED] * WINDOW)
        return speed

    @property
    def recent(self) -> list[float]:
        """The last five measurements, oldest first."""
        return list(self._recent)

    def restore(self, recent: Sequence[float]) -> None:
        """Go on from what ``recent`` returned."""
        self._recent.extend(recent)
        self.slowness_ppm = max(1, round(median(self._recent)))

    def add(self, predicted_ns: int, measured_s: float) -> None:
        """Record one step: the predicted and the measured time of all of its micro-batches.

        A step without samples, or a time that is not positive, is ignored.
        """
        if predicted_ns > 0 and 0 < measured_s < float("inf"):
            self._recent.append(measured_s * 1e9 / predicted_ns * AS_CALIBRATED)
            self.slowness_ppm = max(1, round(median(self._recent)))
