"""The largest micro-batch that fits into a rank's memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ddpsched.costs.calibration import Calibration
from ddpsched.costs.config import MemoryConfig
from ddpsched.costs.cost_model import Int


@dataclass(frozen=True)
class Cap:
    """The memory limit of a rank's micro-batches.

    A padded one fits if count * weigh(longest) <= room, a packed one if its sum of weigh(length) does. From a
    calibrated memory model, ``weigh`` is in bytes and ``room`` is the budget less the model's fixed part. From the
    probe, which measured ``count`` samples of the longest length, both are in tokens, and no micro-batch may have more
    samples than that.
    """

    room: int
    weigh: Callable[[Int], Int]
    count: int | None = None

    def limit(self, lengths: Int) -> Int:
        """Return the most samples of a padded micro-batch whose longest has each of these lengths, (n,) -> (n,)."""
        most = np.maximum(self.room // self.weigh(lengths), 0)
        return most if self.count is None else np.minimum(most, self.count)

    def prefix(self, lengths: Int) -> int:
        """Return how many of these samples, from the first on, fit as one padded micro-batch."""
        counts = np.arange(1, len(lengths) + 1)
        over = counts > self.limit(np.maximum.accumulate(lengths))
        return int(over.argmax()) if over.any() else len(lengths)


def probed(count: int, max_length: int) -> Cap:
    """Return the cap of a probe in which ``count`` samples of ``max_length`` tokens fitted."""
    return Cap(count * max_length, lambda lengths: lengths, count)


def caps_of(memory: MemoryConfig, allowed: Sequence[int], max_length: int) -> tuple[Cap, ...]:
    """Return the cap of each rank from the memory ``allowed``.

    That is in bytes where ``memory.path`` names a calibration, which is read here; else in samples of ``max_length``
    tokens.
    """
    if memory.path is None:
        return tuple(probed(count, max_length) for count in allowed)
    model = Calibration.load(memory.path).memory
    return tuple(Cap(budget - model.fixed, model.sample) for budget in allowed)
