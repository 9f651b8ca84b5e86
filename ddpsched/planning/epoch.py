"""What the plans of an epoch follow from: lengths by id, and the value that holds all the rest."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ddpsched.config import RunConfig
from ddpsched.errors import DataError
from ddpsched.plan import Ids, Position
from ddpsched.planning.caps import Cap
from ddpsched.planning.cost import CostModel
from ddpsched.planning.messages import Exchange
from ddpsched.planning.speed import Speed


class Lengths(Protocol):
    """Token lengths by id: a whole tokenised set, or one that tokenises what it is asked for."""

    def __len__(self) -> int: ...

    def lengths(self, ids: Ids) -> npt.NDArray[np.int64]: ...


class KnownLengths:
    """Lengths that are all there, by id; at least 1 each, as DataError says where they are not."""

    def __init__(self, lengths: npt.ArrayLike) -> None:
        given = np.asarray(lengths)
        if given.ndim != 1 or len(given) == 0 or given.dtype.kind not in "iu":
            raise DataError(f"lengths must be a flat array of integers, got {given.dtype} of shape {given.shape}")
        if given.min() < 1:
            where = int(given.argmin())
            raise DataError(f"lengths[{where}] = {given[where]}: every sample has at least one token")
        self._lengths = given.astype(np.int64, copy=False)

    def __len__(self) -> int:
        return len(self._lengths)

    def lengths(self, ids: Ids) -> npt.NDArray[np.int64]:
        return self._lengths[ids]


@dataclass(frozen=True)
class Epoch:
    """All that the plans of one epoch, from ``start`` on, follow from."""

    config: RunConfig
    source: Lengths
    exchange: Exchange
    cost: CostModel
    caps: tuple[Cap, ...] | None
    speeds: Sequence[Speed] | None
    start: Position
    order: Ids
