"""Samples that a stream's readers all read, where nobody has divided them: its ranks, or a DataLoader's workers."""

import warnings
import zlib
from typing import Any

import numpy as np

from ddpsched.step_plan import Ids

ENOUGH = 16  # samples in a row whose lengths are the same, which is no coincidence
KINDS = 3  # lengths that differ among them: where all are as long, nothing is known


class FirstLengths:
    """The lengths of the first samples read from ``iterable``, a DataLoader or any other.

    Warns where its worker processes, which take turns, read the same ones.
    """

    def __init__(self, iterable: Any) -> None:
        self._workers = max(1, getattr(iterable, "num_workers", 0))
        self._lengths: list[int] = []

    def add(self, length: int) -> None:
        """Take the length of the next sample."""
        if len(self._lengths) == ENOUGH * self._workers:
            return
        self._lengths.append(length)
        if len(self._lengths) == ENOUGH * self._workers > ENOUGH:
            turns = np.reshape(self._lengths, (ENOUGH, self._workers))
            if (turns == turns[:, :1]).all() and len(np.unique(turns)) >= KINDS:
                warnings.warn(
                    f"the first {ENOUGH} samples of all {self._workers} workers are as long, so each may read the "
                    f"whole stream, and every sample be trained {self._workers} times; let the data set's iterator "
                    "share them out by torch.utils.data.get_worker_info()",
                    stacklevel=2,
                )

    @property
    def mark(self) -> int:
        """Another number for other lengths; 0 where too few were read, or they are too much alike."""
        first = self._lengths[:ENOUGH]
        known = len(first) == ENOUGH and len(set(first)) >= KINDS
        known = known and first not in (sorted(first), sorted(first, reverse=True))  # as by a curriculum, on all ranks
        return zlib.crc32(np.array(first).tobytes()) + 1 if known else 0


def warn_of_ranks(marks: Ids) -> bool:
    """Warn where ranks have the same mark, (G,). Returns whether nothing is left to compare."""
    known = marks[marks > 0]
    kinds, counts = np.unique(known, return_counts=True)
    if len(kinds) < len(known):
        alike = np.flatnonzero(marks == kinds[counts.argmax()]).tolist()
        warnings.warn(
            f"StreamScheduler: the first {ENOUGH} samples of ranks {', '.join(map(str, alike))} are as long, so they "
            "may read the same stream, and train each sample once a rank; give each rank its own share of the samples",
            stacklevel=2,
        )
        return True
    return len(known) == len(marks)
