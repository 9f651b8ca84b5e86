"""A menu of shapes: the few (rows, length) that padded micro-batches are filled up to, and their cost then.

A compiler that specialises on shapes makes a program for each. With a menu there are few: a micro-batch takes the
cheapest shape that holds it, its samples padded to the shape's length, and rows of weight 0 where it has fewer samples.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, fields
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ddpsched.costs.cost_model import CostModel, Int
from ddpsched.errors import InfeasibleError
from ddpsched.step_plan import Sizes

Shape = tuple[int, int]  # rows, and tokens of each
NOWHERE = 2**58  # the cost of what no shape holds: never the cheapest, and a few of them still are a 64-bit integer


@dataclass(frozen=True)
class MenuCost(CostModel):
    """The cost of the cheapest of ``shapes`` that holds a micro-batch:

        cost(count, longest) = min over shapes (rows, length) with rows >= count and length >= longest
                               of the cost model's cost of (rows, length)

    It falls with neither, as each shape that holds more also holds less, but it is no longer linear in the count. Of
    equally cheap shapes the one with fewer tokens is taken, then the shorter one.

    >>> cost = MenuCost(0, 1, 0, scale=1, shapes=((2, 8), (8, 4)))
    >>> cost.padded([1, 2, 3], [3, 8, 4]).tolist(), cost.shape(1, 3)
    ([16, 16, 32], (2, 8))
    """

    _: KW_ONLY
    shapes: tuple[Shape, ...] = ()

    @property
    def linear(self) -> bool:
        return False

    @cached_property
    def model(self) -> CostModel:
        """The cost of a shape itself."""
        return CostModel(**{each.name: getattr(self, each.name) for each in fields(CostModel)})

    @cached_property
    def priced(self) -> list[tuple[int, int, int]]:
        """Price, rows and length of each shape, the cheapest first, of equally cheap ones that with the most rows."""
        counts, lengths = np.array(self.shapes, dtype=np.int64).T
        each = zip(self.model.padded(counts, lengths).tolist(), counts.tolist(), lengths.tolist(), strict=True)
        return sorted(each, key=lambda shape: (shape[0], -shape[1], shape[2]))

    @cached_property
    def _rows(self) -> Int:
        return np.unique([rows for rows, _ in self.shapes])

    @cached_property
    def lengths(self) -> Int:
        """The lengths of the menu, rising."""
        return np.unique([length for _, length in self.shapes])

    @cached_property
    def _cheapest(self) -> npt.NDArray[np.int64]:
        """Index of the shape for the i-th number of rows and the j-th length; that of none is ``len(shapes)``."""
        counts, lengths = np.array(self.shapes, dtype=np.int64).T
        order = np.lexsort((lengths, counts * lengths, self.model.padded(counts, lengths)))
        table = np.full((len(self._rows) + 1, len(self.lengths) + 1), len(self.shapes), dtype=np.int64)
        for index in order[::-1].tolist():  # the cheapest last, over the others
            rows, length = self.shapes[index]
            table[: np.searchsorted(self._rows, rows) + 1, : np.searchsorted(self.lengths, length) + 1] = index
        return table

    @cached_property
    def _prices(self) -> Int:
        counts, lengths = np.array(self.shapes, dtype=np.int64).T
        return np.append(self.model.padded(counts, lengths), NOWHERE)

    @cached_property
    def _tokens(self) -> Int:
        return np.array([*(rows * length for rows, length in self.shapes), NOWHERE], dtype=np.int64)

    def _index(self, count: Any, longest: Any) -> Int:
        return self._cheapest[np.searchsorted(self._rows, count), np.searchsorted(self.lengths, longest)]

    def padded(self, count: Any, longest: Any) -> Int:
        count = np.asarray(count, dtype=np.int64)
        return np.where(count > 0, self._prices[self._index(count, longest)], 0)

    def computed(self, count: Any, longest: Any) -> Int:
        count = np.asarray(count, dtype=np.int64)
        return np.where(count > 0, self._tokens[self._index(count, longest)], 0)

    def shape(self, count: int, longest: int) -> Shape:
        """Return the shape of a micro-batch. Raises InfeasibleError where none holds it."""
        index = int(self._index(count, longest))
        if index == len(self.shapes):
            raise InfeasibleError(outside(count, longest, self.shapes))
        return self.shapes[index]

    def check(self, counts: Int, longest: Int) -> None:
        """Raise InfeasibleError where no shape holds one of these micro-batches. ``counts``, ``longest``: (n,)."""
        for place in np.flatnonzero(self._index(counts, longest) == len(self.shapes)).tolist():
            self.shape(int(counts[place]), int(longest[place]))

    def rounded(self, lengths: Int) -> Int:
        """Return the next length of the menu. Raises InfeasibleError for a sample that is longer than all."""
        longest = int(lengths.max(initial=0))
        if longest > self.lengths[-1]:
            raise InfeasibleError(outside(1, longest, self.shapes))
        return self.lengths[np.searchsorted(self.lengths, lengths)]

    def most_rows(self, lengths: Int) -> Int:
        """Return the most samples of a micro-batch whose longest has each of these lengths, (n,) -> (n,); 0 for none.

        >>> MenuCost(0, 1, 0, scale=1, shapes=((2, 8), (8, 4))).most_rows(np.array([3, 5, 9])).tolist()
        [8, 2, 0]
        """
        order = np.argsort([length for _, length in self.shapes])
        rows, longest = np.array(self.shapes, dtype=np.int64)[order].T
        from_here = np.append(np.maximum.accumulate(rows[::-1])[::-1], 0)
        return from_here[np.searchsorted(longest, lengths)]

    def price_microbatches(self, lengths: Int, sizes: Sizes, packed: bool = False, pad_to: int = 0) -> list[list[int]]:
        """Return the costs, as the base does. Raises InfeasibleError for a micro-batch that no shape holds."""
        by_rank = super().price_microbatches(lengths, sizes, packed, pad_to)
        if max(map(max, filter(None, by_rank)), default=0) >= NOWHERE:
            starts = np.cumsum([0, *(size for rank in sizes for size in rank)])
            for start, end in pairwise(starts.tolist()):
                if end > start:
                    self.shape(end - start, int(max(lengths[start:end].max(), pad_to)))
        return by_rank


def on_menu(cost: CostModel, shapes: Sequence[Shape]) -> MenuCost:
    """Return the cost of micro-batches that are filled up to these shapes."""
    return MenuCost(**{each.name: getattr(cost, each.name) for each in fields(CostModel)}, shapes=tuple(shapes))


def outside(count: int, longest: int, shapes: Sequence[Shape]) -> str:
    """Return the message for a micro-batch that no shape holds."""
    most, length = max(rows for rows, _ in shapes), max(length for _, length in shapes)
    what = (
        f"a sample of {longest} tokens fits" if count == 1 else f"{count} samples, the longest of {longest} tokens, fit"
    )
    smaller = "lower data.max_length" if longest > length else "lower global_batch"
    return (
        f"{what} into none of the {len(shapes)} shapes of the menu, of up to {most} rows and {length} tokens; "
        f"add a larger one to compile.menu, leave compile.menu out, or {smaller}"
    )
