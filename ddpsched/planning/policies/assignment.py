"""What policies are given, what they answer, and their two shapes."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ddpsched.costs.kinds import CostModel, Int
from ddpsched.costs.memory_cap import Cap
from ddpsched.planning.solvers.allocation import Allocation


@dataclass(frozen=True)
class Batch:
    """The next samples of the global order, and whom they are for.

    ``lengths``: (size,), or None where they are not known here. ``caps`` and ``slowness`` (in millionths) are of each
    rank, None where all are alike. ``max_microbatches``: of a rank.
    """

    lengths: Int | None
    size: int
    world_size: int
    step: int
    cost: CostModel
    caps: tuple[Cap, ...] | None = None
    slowness: tuple[int, ...] | None = None
    max_microbatches: int = 1
    pad_to: int = 0  # tokens that every padded row has at least
    in_turn: bool = False  # neighbours are alike, so runs of them would make ranks unlike


@dataclass(frozen=True)
class Assignment:
    """Who runs what: ``positions`` into the batch, of which each micro-batch takes ``sizes[rank][m]`` in turn."""

    positions: npt.NDArray[np.int64]
    sizes: tuple[tuple[int, ...], ...]
    costs: tuple[int, ...] | None
    lower_bound: int | None
    status: str
    tie_break: str
    method: str
    packed: bool = False


BatchPolicy = Callable[[Batch], Assignment]
# (costs (world_size, K), batch_size, caps (world_size,), solver)
WindowPolicy = Callable[[Int, int, Int, str], Allocation]
