"""Where planning learns of samples: lengths by id."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from ddpsched.errors import ConfigError, DataError
from ddpsched.plan import Ids


class Lengths(Protocol):
    """Token lengths by id: a whole tokenised set, or one that tokenises what it is asked for."""

    @property
    def rows(self) -> Ids | None:
        """(N,), rising: each sample's row in its source, from 0, as an ordered file numbers them; None: its id."""

    def __len__(self) -> int: ...

    def lengths(self, ids: Ids) -> npt.NDArray[np.int64]: ...

    def parts(self, ids: Ids) -> npt.NDArray[np.int64]:
        """(n, 2): tokens of prompt and text, which sum to the length; asked for by a budget of two numbers alone."""


class KnownLengths:
    """Lengths that are all there, by id; at least 1 each, as DataError says where they are not.

    ``lengths``: (N,), or (N, 2) of two parts whose sum is the sample's, as prompt and text or source and target.
    """

    rows: Ids | None = None

    def __init__(self, lengths: npt.ArrayLike) -> None:
        given = np.asarray(lengths)
        parts = given.ndim == 2 and given.shape[1] == 2
        if not (given.ndim == 1 or parts) or len(given) == 0 or given.dtype.kind not in "iu":
            raise DataError(
                f"lengths must be a flat array of integers, or one of two columns, got {given.dtype} of shape "
                f"{given.shape}"
            )
        self._parts = given.astype(np.int64, copy=False) if parts else None
        if self._parts is not None and self._parts.min() < 0:
            raise DataError(f"lengths[{int(self._parts.min(axis=1).argmin())}] has a negative part")
        self._lengths = given.sum(axis=1, dtype=np.int64) if parts else given.astype(np.int64, copy=False)
        if self._lengths.min() < 1:
            where = int(self._lengths.argmin())
            raise DataError(f"lengths[{where}] = {given[where]}: every sample has at least one token")

    def __len__(self) -> int:
        return len(self._lengths)

    def lengths(self, ids: Ids) -> npt.NDArray[np.int64]:
        return self._lengths[ids]

    def parts(self, ids: Ids) -> npt.NDArray[np.int64]:
        if self._parts is None:
            raise ConfigError(
                "policy.max_tokens_for_batch bounds two parts of a sample, but lengths are of the whole; give lengths "
                "of shape (samples, 2), or one number"
            )
        return self._parts[ids]
