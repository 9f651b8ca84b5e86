"""The memory that a micro-batch needs."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Int = npt.NDArray[np.int64]


@dataclass(frozen=True)
class MemoryModel:
    """The peak bytes of a micro-batch: base + count * (per_sample + per_token*length + per_square*length**2).

    base is the process without a micro-batch: weights, optimizer state, gradients; on a CPU the libraries as well.
    Each part is rounded up to whole bytes.

    >>> memory = MemoryModel(base=1000, per_sample=0, per_token=10, per_square=0.5)
    >>> int(memory.bytes(3, 20)), memory.most(2199, 20), memory.packed([20, 10])
    (2200, 2, 1550)
    """

    base: float
    per_sample: float
    per_token: float
    per_square: float

    @property
    def fixed(self) -> int:
        """The bytes before the first sample."""
        return int(np.ceil(self.base))

    def sample(self, length: Any) -> Int:
        """Return the bytes of one sample of ``length`` tokens, at least 1, even where none were measured."""
        length = np.asarray(length, dtype=np.float64)
        needs = self.per_sample + (self.per_token + self.per_square * length) * length
        return np.maximum(1, np.ceil(needs)).astype(np.int64)

    def bytes(self, count: Any, length: Any) -> Int:
        """Return the peak bytes of a padded micro-batch; arrays broadcast."""
        return self.fixed + np.asarray(count, dtype=np.int64) * self.sample(length)

    def packed(self, lengths: Any) -> int:
        """Return the peak bytes of one packed micro-batch of samples of these lengths."""
        return self.fixed + int(self.sample(lengths).sum())

    def most(self, budget_bytes: int, length: int) -> int:
        """Return the largest count within the budget when padded to ``length``; 0 where not even one fits."""
        return max(0, (budget_bytes - self.fixed) // int(self.sample(length)))
