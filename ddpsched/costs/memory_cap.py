"""The memory that a micro-batch needs, and the largest one that fits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ddpsched.costs.cost_model import Int
from ddpsched.step_plan import Microbatch
from ddpsched.table import NonNegative


@dataclass(frozen=True)
class MemoryModel:
    """The peak bytes of a micro-batch: base + count * (per_sample + per_token*length + per_square*length**2).

    base is the process without a micro-batch: weights, optimizer state, gradients; on a CPU the libraries as well.
    Each part is rounded up to whole bytes.

    >>> memory = MemoryModel(base=1000, per_sample=0, per_token=10, per_square=0.5)
    >>> int(memory.bytes(3, 20)), memory.sample([20, 10]).tolist()
    (2200, [400, 150])
    """

    base: NonNegative
    per_sample: NonNegative
    per_token: NonNegative
    per_square: NonNegative

    @property
    def fixed(self) -> int:
        """The bytes before the first sample."""
        return int(np.ceil(self.base))

    def largest(self, length: int) -> float:
        """Return the bytes of one sample of ``length`` tokens, however many."""
        return self.base + self.per_sample + (self.per_token + self.per_square * length) * length

    def sample(self, length: Any) -> Int:
        """Return the bytes of one sample of ``length`` tokens, at least 1, even where none were measured."""
        length = np.asarray(length, dtype=np.float64)
        bytes_needed = self.per_sample + (self.per_token + self.per_square * length) * length
        return np.maximum(1, np.ceil(bytes_needed)).astype(np.int64)

    def bytes(self, count: Any, length: Any) -> Int:
        """Return the peak bytes of a padded micro-batch; arrays broadcast."""
        return self.fixed + np.asarray(count, dtype=np.int64) * self.sample(length)


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
        over = np.arange(1, len(lengths) + 1) > self.limit(np.maximum.accumulate(lengths))
        return int(over.argmax()) if over.any() else len(lengths)

    def need(self, micro: Microbatch, lengths: Int) -> int:
        """Return what a micro-batch needs, to be compared with ``room``; ``lengths``: of its samples."""
        if micro.packed:
            return int(self.weigh(lengths).sum())
        return len(micro) * int(self.weigh(np.array([micro.padded_length(lengths)]))[0])


def in_tokens(lengths: Int) -> Int:
    """Return the lengths: what samples weigh where memory is counted in tokens."""
    return lengths


UNLIMITED = Cap(2**62, in_tokens)


def probed(count: int, max_length: int) -> Cap:
    """Return the cap of a probe in which ``count`` samples of ``max_length`` tokens fitted."""
    return Cap(count * max_length, in_tokens, count)


def lowered(caps: Sequence[Cap] | None, rooms: Mapping[int, int], world_size: int) -> tuple[Cap, ...]:
    """Return the caps with at most ``rooms[r]`` for these ranks; without any before, the others have no limit."""
    before = caps or (UNLIMITED,) * world_size
    return tuple(replace(cap, room=min(cap.room, rooms.get(rank, cap.room))) for rank, cap in enumerate(before))
