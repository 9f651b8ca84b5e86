"""How large a micro-batch may be in a rank's memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ddpsched.costs.calibration import Calibration
from ddpsched.costs.config import MemoryConfig
from ddpsched.costs.cost_model import Int


@dataclass(frozen=True)
class Cap:
    """A padded micro-batch fits if count * weigh(longest) <= room, a packed one if its sum of weigh(length) does.

    From a calibrated memory model ``weigh`` is in bytes and ``room`` what the budget leaves above the model's fixed
    part; from the probe, which measured ``count`` samples of the longest length, both are in tokens and no
    micro-batch may have more samples than were tried.
    """

    room: int
    weigh: Callable[[Int], Int]
    count: int | None = None

    def limit(self, lengths: Int) -> Int:
        """(n,) -> (n,), the most samples of a padded micro-batch whose longest is this long."""
        most = np.maximum(self.room // self.weigh(lengths), 0)
        return most if self.count is None else np.minimum(most, self.count)

    def prefix(self, lengths: Int) -> int:
        """How many of these samples, from the first on, fit as one padded micro-batch."""
        counts = np.arange(1, len(lengths) + 1)
        over = counts > self.limit(np.maximum.accumulate(lengths))
        return int(over.argmax()) if over.any() else len(lengths)


def probed(count: int, max_length: int) -> Cap:
    """The cap of a probe that found ``count`` samples of ``max_length`` tokens to fit."""
    return Cap(count * max_length, _tokens, count)


def caps_of(memory: MemoryConfig, allowed: Sequence[int], max_length: int) -> tuple[Cap, ...]:
    """Return the cap of each rank from what is ``allowed`` it.

    In bytes where ``memory.path`` names a calibration, which is read here; else in samples of ``max_length`` tokens.
    """
    if memory.path is None:
        return tuple(probed(count, max_length) for count in allowed)
    model = Calibration.load(memory.path).memory
    return tuple(Cap(budget - model.fixed, model.sample) for budget in allowed)


def _tokens(lengths: Int) -> Int:
    return lengths
