"""Costs that are linear in the count: what fits find, what packed rows need, and what solvers invert."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Int = npt.NDArray[np.int64]

NANOSECONDS = 10**9


@dataclass(frozen=True)
class AffineQuadratic:
    """alpha + count * (delta + beta*max_length + gamma*max_length**2), in whole units of 1/``scale``.

    alpha is per micro-batch, delta per sample, beta per padded token, and gamma per
    sample and token squared (attention): in seconds with ``scale`` a thousand million,
    in tokens with ``scale`` 1. No samples cost nothing. Whole numbers make it exactly
    invertible: within a budget fit ``(budget - fixed) // sample(max_length)`` samples.

    >>> padded_tokens = AffineQuadratic(0, 1, 0, scale=1)
    >>> int(padded_tokens(3, 20)), AffineQuadratic(50, 1, 0, scale=1)(3, [20, 30]).tolist()
    (60, [110, 140])
    """

    alpha: float
    beta: float
    gamma: float
    scale: int = NANOSECONDS
    delta: float = 0.0

    @property
    def fixed(self) -> int:
        """What a micro-batch costs before its first sample."""
        return round(self.alpha * self.scale)

    def sample(self, length: Any) -> Int:
        """What a sample costs that is padded to ``length``, or as long as that in a packed micro-batch; at least 1."""
        if self.gamma == 0 and self.delta == 0 and self.beta * self.scale == 1:
            return np.asarray(length, dtype=np.int64)
        length = np.asarray(length, dtype=np.float64)
        cost = (self.delta + (self.beta + self.gamma * length) * length) * self.scale
        return np.maximum(np.rint(cost).astype(np.int64), 1)

    def __call__(self, count: Any, max_length: Any) -> Int:
        count = np.asarray(count, dtype=np.int64)
        return np.where(count > 0, self.fixed + count * self.sample(max_length), 0)

    def packed(self, lengths: Any) -> int:
        """What samples of these lengths cost in one packed micro-batch."""
        return self.fixed + int(self.sample(lengths).sum()) if len(lengths) else 0

    def seconds(self, count: Any, max_length: Any) -> npt.NDArray[np.float64]:
        """The padded cost in seconds, of a model whose coefficients are seconds."""
        return self(count, max_length) / self.scale


@dataclass(frozen=True)
class Floored:
    """max(floor, linear): a GPU that waits for its host to launch the kernels of a small micro-batch.

    ``floor`` is in seconds. It has no ``sample``, as it is not linear in the count; within
    a budget of at least ``least`` fit as many samples as in ``linear``, and else none.

    >>> Floored(AffineQuadratic(1e-3, 1e-5, 0), floor=4e-3)([0, 1, 10, 100], 50).tolist()
    [0, 4000000, 6000000, 51000000]
    """

    linear: AffineQuadratic
    floor: float

    @property
    def least(self) -> int:
        """What a micro-batch costs at least, in the units of ``linear``."""
        return round(self.floor * self.linear.scale)

    def __call__(self, count: Any, max_length: Any) -> Int:
        cost = self.linear(count, max_length)
        return np.where(cost > 0, np.maximum(self.least, cost), 0)

    def packed(self, lengths: Any) -> int:
        """What samples of these lengths cost in one packed micro-batch."""
        return max(self.least, self.linear.packed(lengths)) if len(lengths) else 0

    def seconds(self, count: Any, max_length: Any) -> npt.NDArray[np.float64]:
        """The padded cost in seconds."""
        return self(count, max_length) / self.linear.scale
