"""The cost of a micro-batch, in exact integers, so that every rank computes the same plan."""

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ddpsched.step_plan import Microbatch, Sizes

Int = npt.NDArray[np.int64]

NANOSECONDS = 10**9


@dataclass(frozen=True)
class CostModel:
    """The cost max(floor, alpha + count * (delta + beta*L + gamma*L**2)), in whole units of 1/``scale``.

    L is the padded length. alpha is a fixed cost per micro-batch, delta per sample, beta per padded token, and gamma
    per sample and token squared (attention); ``floor`` is the least that a micro-batch costs, as on a GPU whose host
    launches kernels slower than they run. All are in seconds with ``scale`` 10**9, in tokens with ``scale`` 1. A
    micro-batch without samples costs nothing. Whole numbers make it exactly invertible: within a budget of at least
    ``least`` fit ``(budget - fixed) // sample(L)`` samples. ``squared``: the square of that, which does not add up over
    micro-batches, so packed rows and several micro-batches have no such cost.

    >>> tokens = CostModel(0, 1, 0, scale=1)
    >>> int(tokens.padded(3, 20)), CostModel(50, 1, 0, scale=1).padded(3, [20, 30]).tolist()
    (60, [110, 140])
    >>> CostModel(1e-3, 1e-5, 0, floor=4e-3).padded([0, 1, 10, 100], 50).tolist()
    [0, 4000000, 6000000, 51000000]
    """

    alpha: float
    beta: float
    gamma: float
    _: KW_ONLY
    delta: float = 0.0
    floor: float = 0.0
    scale: int = NANOSECONDS
    squared: bool = False
    gather_alpha: float = 0.0
    gather_beta: float = 0.0

    @property
    def prices_gathering(self) -> bool:
        """Whether gathering the keys and values of a split sample has a price."""
        return self.gather_alpha > 0 or self.gather_beta > 0

    def gather(self, length: int, count: int) -> int:
        """Return what each of ``count`` ranks pays for the keys and values that the others have of a sample.

        gather_alpha once, and gather_beta for each of the ``length * (count - 1) / count`` tokens that it receives; no
        part of the costs that plans balance.
        """
        return round((self.gather_alpha + self.gather_beta * length * (count - 1) / count) * self.scale)

    @property
    def linear(self) -> bool:
        """Whether it is linear in the count, down to its floor, and adds up over micro-batches."""
        return not self.squared

    @property
    def fixed(self) -> int:
        """The cost of a micro-batch before its first sample."""
        return round(self.alpha * self.scale)

    @property
    def least(self) -> int:
        """The least cost of a micro-batch."""
        return round(self.floor * self.scale)

    def sample(self, length: Any) -> Int:
        """Return the cost of a sample padded to ``length``, or of that length in a packed micro-batch; at least 1."""
        if self.gamma == 0 and self.delta == 0 and self.beta * self.scale == 1:
            return np.asarray(length, dtype=np.int64)
        length = np.asarray(length, dtype=np.float64)
        cost = (self.delta + (self.beta + self.gamma * length) * length) * self.scale
        return np.maximum(np.rint(cost).astype(np.int64), 1)

    def padded(self, count: Any, longest: Any) -> Int:
        """Return the cost of ``count`` samples padded to ``longest`` tokens; arrays broadcast."""
        count = np.asarray(count, dtype=np.int64)
        cost = self.fixed + count * self.sample(longest)
        if self.floor:
            cost = np.maximum(self.least, cost)
        cost = np.where(count > 0, cost, 0)
        return cost * cost if self.squared else cost

    def packed(self, lengths: Any) -> int:
        """Return the cost of samples of these lengths in one packed micro-batch."""
        assert self.linear, "the config refuses it: squares do not add up over the samples of a row"
        return max(self.least, self.fixed + int(self.sample(lengths).sum())) if len(lengths) else 0

    def part(self, length: int, count: int) -> int:
        """Return the cost of one of ``count`` parts of a sample of ``length`` tokens, which cost alike.

        >>> CostModel(5, 1, 0, scale=1).part(10, 3)
        9
        """
        return max(self.least, self.fixed - (-int(self.sample(length)) // count))

    def unpadded(self, lengths: Int) -> Int:
        """Return the cost of each sample without padding and without the fixed cost per micro-batch, (n,) -> (n,)."""
        return self.padded(1, lengths) if self.squared else self.sample(lengths)

    def shape(self, count: int, longest: int) -> tuple[int, int]:
        """Return rows and length of the tensors of a padded micro-batch; a menu of shapes makes them larger."""
        return count, longest

    def computed(self, count: Any, longest: Any) -> Int:
        """Return the tokens of padded micro-batches, those of padding included; arrays broadcast."""
        return np.asarray(count, dtype=np.int64) * np.asarray(longest, dtype=np.int64)

    def rounded(self, lengths: Int) -> Int:
        """Return the lengths that samples are padded to even where they are the longest: their own."""
        return lengths

    def prefixes(self, lengths: Int) -> Int:
        """Return the cost of the first k samples as one padded micro-batch, for k = 1..K, (K,) -> (K,).

        >>> CostModel(0, 1, 0, scale=1).prefixes(np.array([3, 2, 5])).tolist()
        [3, 6, 15]
        """
        return self.padded(np.arange(1, len(lengths) + 1), np.maximum.accumulate(lengths))

    def price(self, micro: Microbatch, lengths: Int) -> int:
        """Return the cost of one micro-batch. ``lengths``: (count,), of its samples."""
        if micro.part is not None:
            return self.part(int(lengths[0]), micro.part.count)
        if micro.packed:
            return self.packed(lengths)
        return int(self.padded(len(lengths), micro.padded_length(lengths)))

    def price_ranks(self, lengths: Int, sizes: Sizes, packed: bool = False, pad_to: int = 0) -> tuple[int, ...]:
        """Return the cost of each rank's micro-batches. ``lengths``: (B,), of which ``sizes[r][m]`` in each.

        >>> CostModel(0, 1, 0, scale=1).price_ranks(np.array([3, 2, 9]), [[2], [1]])
        (6, 9)
        """
        return tuple(map(sum, self.price_microbatches(lengths, sizes, packed, pad_to)))

    def price_microbatches(self, lengths: Int, sizes: Sizes, packed: bool = False, pad_to: int = 0) -> list[list[int]]:
        """Return the cost of each micro-batch of each rank, as ``price_ranks`` adds them up; empty ones are left out.

        >>> CostModel(0, 1, 0, scale=1).price_microbatches(np.array([3, 2, 9]), [[1, 1], [1]])
        [[3, 2], [9]]
        """
        counts = np.array([size for rank in sizes for size in rank if size], dtype=np.int64)
        ends = np.cumsum(counts)
        if packed:
            each = [self.packed(part) for part in np.split(lengths, ends[:-1])]
        else:
            longest = np.maximum.reduceat(lengths, ends - counts)
            each = self.padded(counts, np.maximum(longest, pad_to)).tolist()
        costs = iter(each)
        return [[next(costs) for size in rank if size] for rank in sizes]

    def seconds(self, count: Any, longest: Any) -> npt.NDArray[np.float64]:
        """Return the padded cost in seconds, for a model whose coefficients are in seconds."""
        return self.padded(count, longest) / self.scale


padded_tokens = CostModel(0, 1, 0, scale=1)
padded_tokens_squared = CostModel(0, 1, 0, scale=1, squared=True)
