"""Lengths by id, which is all that planning knows of samples."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ddpsched.errors import ConfigError, DataError
from ddpsched.step_plan import Ids


class Lengths(Protocol):
    """Token lengths by id, of a tokenised data set or of one that is tokenised on demand."""

    @property
    def rows(self) -> Ids | None:
        """Each sample's row in its source, (N,), rising, from 0, as an ordered file has it; None where it is the id."""

    def __len__(self) -> int: ...

    def lengths(self, ids: Ids) -> npt.NDArray[np.int64]:
        """Return the tokens of each sample, (n,)."""
        ...

    def parts(self, ids: Ids) -> npt.NDArray[np.int64]:
        """Return the tokens of prompt and text, (n, 2), which sum to the length; only a budget of two numbers asks."""


class KnownLengths:
    """Lengths that are all known, at least 1 each.

    ``lengths``: (N,), or (N, 2) of two parts whose sum is the sample's, as prompt and text or source and target. Raises
    DataError for other shapes, for numbers that are not integers, and for samples without tokens.

    >>> KnownLengths([[2, 3], [0, 4]]).lengths(np.array([1, 0])).tolist()
    [4, 5]
    """

    rows: Ids | None = None

    def __init__(self, lengths: npt.ArrayLike) -> None:
        given = as_array(lengths)
        if given.ndim == 0 or given.shape[1:] not in ((), (2,)) or len(given) == 0 or given.dtype.kind not in "iu":
            raise DataError(
                f"lengths must be a flat array of integers, or one of two columns, got {given.dtype} of shape "
                f"{given.shape}; give the tokens of each sample as whole numbers; ddpsched.lengths(dataset) counts them"
            )
        numbers = given.astype(np.int64, copy=False)
        self._parts = numbers if given.ndim == 2 else None
        if self._parts is not None and self._parts.min() < 0:
            raise DataError(f"lengths[{int(self._parts.min(axis=1).argmin())}] has a negative part")
        self._lengths = numbers if self._parts is None else numbers.sum(axis=1)
        if self._lengths[where := int(self._lengths.argmin())] < 1:
            raise DataError(
                f"lengths[{where}] = {given[where]}: every sample has at least one token; remove or correct it"
            )

    def __len__(self) -> int:
        return len(self._lengths)

    def lengths(self, ids: Ids) -> npt.NDArray[np.int64]:
        """Return the tokens of each sample, (n,)."""
        return self._lengths[ids]

    def parts(self, ids: Ids) -> npt.NDArray[np.int64]:
        """Return the two parts of each sample, (n, 2). Raises ConfigError where only whole lengths are known."""
        if self._parts is None:
            raise ConfigError(
                "policy.max_tokens_for_batch bounds two parts of a sample, but lengths are of the whole; give lengths "
                "of shape (samples, 2), or one number"
            )
        return self._parts[ids]


def as_array(lengths: Any) -> npt.NDArray[Any]:
    """Return lengths as an array. Raises DataError for a data set, before numpy reads all of its samples."""
    if isinstance(lengths, np.ndarray):
        return lengths
    if type(lengths).__module__.startswith("torch.utils.data"):  # whose samples may not even make a batch
        raise DataError(
            f"lengths: a {type(lengths).__name__} is no list of lengths; give ddpsched.lengths(dataset), the tokens of "
            "each sample of its data set"
        )
    iterates = hasattr(lengths, "__iter__") or hasattr(lengths, "__getitem__")
    first = next(iter(lengths), None) if iterates and hasattr(lengths, "__len__") else None
    if isinstance(first, Mapping | str) or not iterates:
        kind = "of texts" if isinstance(first, str) else "a data set" if iterates else "of no numbers"
        raise DataError(
            f"lengths: a {type(lengths).__name__} is {kind}; give ddpsched.lengths(dataset), the tokens of each sample"
        )
    try:
        return np.asarray(lengths)
    except (TypeError, ValueError, RuntimeError):  # lists or tensors of several lengths
        kind = f"a {type(first).__name__} of several values" if is_counted(first) else "no number"
        raise DataError(
            f"lengths: the first one is {kind}; give ddpsched.lengths(samples), the tokens of each sample"
        ) from None


def is_counted(value: Any) -> bool:
    """Return whether a value is counted by its items: a list or an array, but no text and no number."""
    return isinstance(value, list | tuple) or bool(getattr(value, "ndim", 0))


def refuse_other_number(dataset: Any, num_lengths: int) -> None:
    """Raise DataError for a data set of a known number of samples that is not the number of lengths."""
    if hasattr(dataset, "__len__") and len(dataset) != num_lengths:
        raise DataError(f"the data set has {len(dataset)} samples, but there are {num_lengths} lengths; give one each")
