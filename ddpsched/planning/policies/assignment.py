"""What a policy answers, and the two shapes of policies."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ddpsched.planning.cost import CostModel, Int
from ddpsched.planning.solvers import Allocation


@dataclass(frozen=True)
class Assignment:
    """``groups[r]``: positions into the batch that rank r runs as one micro-batch."""

    groups: tuple[npt.NDArray[np.int64], ...]
    lower_bound: int | None
    status: str
    tie_break: str
    method: str


# (lengths (B,) or None where they are not known here, world_size, step, cost, caps (world_size,) or None)
BatchPolicy = Callable[[Int | None, int, int, int, CostModel, Int | None], Assignment]
# (costs (world_size, K), batch_size, caps (world_size,), solver)
WindowPolicy = Callable[[Int, int, Int, str], Allocation]
