"""Trial steps: batches of a run on which a menu of shapes is judged, by the mean makespan of the plans on it."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ddpsched.costs.cost_model import CostModel, Int
from ddpsched.costs.shape_menu import MenuCost, Shape, on_menu
from ddpsched.planning.solvers.partition.menu_cover import menu_split
from ddpsched.planning.solvers.partition.min_max_split import min_max_split


class TrialSteps(Protocol):
    """Steps, and the cost of plans of them."""

    @property
    def cost(self) -> CostModel: ...

    @property
    def lengths(self) -> Int: ...  # of all samples in them, in any order

    @property
    def work(self) -> int: ...  # of judging one menu, in operations on numbers

    def typical(self) -> float: ...  # what the slowest rank of a step pays without a menu, about

    def judge(self, shapes: list[Shape]) -> float: ...  # the mean of what the slowest rank of a step pays on a menu


@dataclass(frozen=True)
class SortedSteps:
    """Steps that are split into one padded micro-batch a rank, by length. ``batches``: (steps, B), each falling."""

    cost: CostModel
    batches: Int
    world_size: int

    @property
    def lengths(self) -> Int:
        """Return the lengths of all samples in the steps, in any order."""
        return self.batches.ravel()

    @property
    def work(self) -> int:
        """Return the operations on numbers that judging one menu takes, about."""
        return 40 * self.world_size * (len(self.batches) + 100)

    def typical(self) -> float:
        """Return the mean makespan of at most 64 of the steps, each split at the proved optimum."""
        return float(np.mean([min_max_split(batch, self.world_size, self.cost)[1] for batch in self.batches[:64]]))

    def judge(self, shapes: list[Shape]) -> float:
        """Bisect for the least price at which spans from the longest sample on hold each step, all steps at once."""
        prices, most = _rows_within(self.cost, shapes, int(self.batches.max()))
        steps, size = self.batches.shape
        ends = np.concatenate((self.batches, np.ones((steps, 1), dtype=np.int64)), axis=1)
        each, low, high = np.arange(steps), np.zeros(steps, dtype=np.int64), np.full(steps, len(prices) - 1)
        while (low < high).any():
            middle = (low + high) // 2
            start = np.zeros(steps, dtype=np.int64)
            for _ in range(self.world_size):
                start = np.minimum(size, start + most[middle, ends[each, start]])
            reached = start == size
            low, high = np.where(reached, low, middle + 1), np.where(reached, middle, high)
            low = np.minimum(low, high)
        return float(prices[low].mean())


@dataclass(frozen=True)
class WindowSteps:
    """Steps in which each rank takes a first part of its window. ``windows``: (steps, G, K); ``batch_size``: B."""

    cost: CostModel
    windows: Int
    batch_size: int

    @property
    def lengths(self) -> Int:
        """Return the lengths of all samples in the steps, in any order."""
        return np.maximum.accumulate(self.windows, axis=2).ravel()

    @property
    def work(self) -> int:
        """Return the operations on numbers that judging one menu takes, about."""
        return 40 * self.windows.size

    def typical(self) -> float:
        """Return the mean of what an even share of the windows costs at most."""
        share = -(-self.batch_size // self.windows.shape[1])
        return float(self.cost.padded(share, self.windows[:, :, :share].max(2)).max(1).mean())

    def judge(self, shapes: list[Shape]) -> float:
        """Return the mean of the least price at which the ranks' first parts are a step."""
        menu, longest = on_menu(self.cost, shapes), np.maximum.accumulate(self.windows, axis=2)
        counts = np.arange(1, self.windows.shape[2] + 1)
        each = menu.padded(counts, longest)  # (steps, G, K), falling with none of the counts
        flat = np.sort(each.reshape(len(each), -1), axis=1)
        # within the B-th smallest price B samples fit, as prefixes cost ever more; each rank runs its first sample
        return float(np.maximum(flat[:, self.batch_size - 1], each[:, :, 0].max(1)).mean())


@dataclass(frozen=True)
class CoverSteps:
    """Steps that are split into several micro-batches a rank. ``batches``: (steps, B)."""

    cost: CostModel
    batches: Int
    world_size: int
    max_microbatches: int

    @property
    def lengths(self) -> Int:
        """Return the lengths of all samples in the steps, in any order."""
        return self.batches.ravel()

    @property
    def work(self) -> int:
        """Return the operations on numbers that judging one menu takes, about."""
        return 3000 * self.batches.size  # of Python, which is slower than numpy's

    def typical(self) -> float:
        """Return the mean of an even share."""
        return float(self.cost.unpadded(self.batches).sum(1).mean()) / self.world_size

    def judge(self, shapes: list[Shape]) -> float:
        """Plan each step."""
        menu: MenuCost = on_menu(self.cost, shapes)
        spans = (menu_split(batch, menu, self.world_size, self.max_microbatches) for batch in self.batches)
        return float(np.mean([split.makespan for split in spans]))


def _rows_within(cost: CostModel, shapes: list[Shape], longest: int) -> tuple[Int, npt.NDArray[np.int64]]:
    """Return the distinct prices of shapes, rising, and the most rows by price and length: (prices, longest + 1)."""
    rows, lengths = np.array(shapes, dtype=np.int64).T
    prices, index = np.unique(cost.padded(rows, lengths), return_inverse=True)
    most = np.zeros((len(prices), longest + 1), dtype=np.int64)
    for place, count, length in zip(index.tolist(), rows.tolist(), lengths.tolist(), strict=True):
        row = most[place, : length + 1]
        np.maximum(row, count, out=row)
    return prices, np.maximum.accumulate(most, axis=0)
