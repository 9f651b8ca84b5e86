"""One rank's micro-batches, chosen from a pool that an iterable's samples keep full, and its position."""

import itertools
import operator
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from ddpsched.costs.memory_cap import Cap
from ddpsched.errors import ConfigError, DataError
from ddpsched.integrations.same_samples import FirstLengths
from ddpsched.planning.assignment import refuse_too_long
from ddpsched.planning.policies.pool import BITS, MASK, Closest, First, PackedRows, Pool, Waiting

Sample = tuple[int, Any]  # its length in tokens, and the sample


class SampleReader:
    """The samples of an iterable one after another; ``infinite``: an epoch that is over is followed by the next.

    Each epoch begins with the iterable's ``set_epoch(e)``, or that of its data set where it is a loader, where there
    is one, and with a new ``iter()``. ``length_fn(sample)``: its tokens. ``ended``: there are no more samples.
    ``first``: the lengths of those read first.

    ``state_dict()`` holds the iterable's state where it has ``state_dict`` and ``load_state_dict``, as torchdata's
    StatefulDataLoader and ``datasets.IterableDataset`` do (the latter without its shuffle buffer, and warns); then
    going on takes no time. Else the samples of the epoch that were read before are read again and dropped, and their
    lengths must be those they were.
    """

    def __init__(self, iterable: Any, length_fn: Callable[[Any], int], infinite: bool, epoch: int) -> None:
        if not callable(length_fn):
            raise ConfigError(f"length_fn is {type(length_fn).__name__}; give a function of a sample, its tokens")
        self._iterable, self._length_fn, self._infinite = iterable, length_fn, infinite
        self._stateful = hasattr(iterable, "state_dict") and hasattr(iterable, "load_state_dict")
        self.epoch, self.ended = epoch, False
        self._count = self._check = 0  # samples of this epoch read so far, and a checksum of their lengths
        self.first = FirstLengths(iterable)
        self._samples: Iterator[Any] | None = None
        self._loaded: Any = None  # the iterable's state, before the epoch that continues from it is begun

    def read(self) -> Sample | None:
        """Return the next sample and its length; None where the data has ended.

        Raises DataError for a length that is not an integer of 1 or more, and where an epoch of an infinite reader
        has no sample.
        """
        while not self.ended:
            if self._samples is None:
                self._samples = self._begin()
            for sample in self._samples:
                length = self._counted(sample)
                self.first.add(length)
                return length, sample
            if not self._infinite:
                self.ended = True
            elif not self._count:
                raise DataError(
                    f"the iterable gave no sample in epoch {self.epoch}; each epoch needs at least one, and an "
                    "iterator or generator can be read only once: give an object whose iter() begins anew"
                )
            else:
                self.epoch, self._count, self._check, self._samples = self.epoch + 1, 0, 0, None
        return None

    def _begin(self) -> Iterator[Any]:
        """Return the samples of the epoch from the reader's position on. Raises ConfigError where they are others."""
        for part in (self._iterable, getattr(self._iterable, "dataset", None)):
            announce: Callable[[int], None] | None = getattr(part, "set_epoch", None)
            if announce is not None:
                announce(self.epoch)
                break
        if self._loaded is not None:
            self._iterable.load_state_dict(self._loaded)
            self._loaded = None
            return iter(self._iterable)
        count, check = self._count, self._check
        samples: Iterator[Any] = iter(self._iterable)
        self._count = self._check = 0
        for sample in itertools.islice(samples, count):
            self._counted(sample)
        if (self._count, self._check) != (count, check):
            raise ConfigError(
                f"the state is of other data: of the {count} samples that epoch {self.epoch} had given, this iterable "
                f"gives {self._count}, or with other lengths; order and data must be the same in every run"
            )
        return samples

    def _counted(self, sample: Any) -> int:
        where = f"length_fn of sample {self._count} of epoch {self.epoch}"
        try:
            length = operator.index(self._length_fn(sample))
        except TypeError as error:
            raise DataError(f"{where}: {error}; give its tokens") from None
        if length < 1:
            raise DataError(f"{where} gave {length}, needs at least 1")
        self._count += 1
        self._check = zlib.crc32(length.to_bytes(8, "little"), self._check)
        return length

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the reader."""
        inner = None
        if self._stateful and self._count and not self.ended:
            inner = self._iterable.state_dict() if self._loaded is None else self._loaded
        return {
            "epoch": self.epoch, "count": self._count, "check": self._check, "ended": self.ended, "iterable": inner,
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Move to that position; the iterable is not touched before the next ``read()``."""
        self.epoch, self._count, self._check = state["epoch"], state["count"], state["check"]
        self.ended, self._samples = state["ended"], None
        self._loaded = state["iterable"] if self._stateful else None


class Reader(Protocol):
    """Samples one after another, as SampleReader has them."""

    @property
    def epoch(self) -> int: ...

    def read(self) -> Sample | None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class PoolPicks:
    """``next_step()``: the micro-batches of a step, as ``policy``, of kind pool, chooses them.

    ``cap``: this rank's memory limit, None for no limit; a sample that alone is over it raises InfeasibleError.
    ``first_epoch``: the reader's at the beginning. ``steps``: a count that the caller keeps.
    """

    def __init__(self, policy: Pool, reader: Reader, cap: Cap | None = None) -> None:
        self.reader, self._policy, self._cap = reader, policy, cap
        self._pool = _pool(policy, [], cap)
        self._samples: dict[int, Any] = {}  # those that wait, by their keys in the pool
        self._number = 0  # of samples read, over all epochs: later samples are younger
        self.first_epoch, self.steps = reader.epoch, 0

    @property
    def has_waiting(self) -> bool:
        """Whether samples were read that no step has got."""
        return bool(self._samples)

    def next_step(self) -> list[list[Sample]]:
        """Return ``batches_per_optimizer_step`` micro-batches; fewer, or none, at the data's end."""
        step: list[list[Sample]] = []
        while len(step) < self._policy.batches_per_optimizer_step:
            self._fill()
            if not len(self._pool):
                break
            step.append([(key >> BITS, self._samples.pop(key)) for key in self._pool.choose()])
        return step

    def _fill(self) -> None:
        fresh: list[int] = []
        while len(self._pool) + len(fresh) < self._policy.pool_size and (pair := self.reader.read()) is not None:
            if self._cap is not None and not self._cap.limit(np.array([pair[0]]))[0]:
                refuse_too_long(pair[0])
            fresh.append(pair[0] << BITS | (MASK - self._number))
            self._samples[fresh[-1]] = pair[1]
            self._number += 1
        self._pool.add(fresh)

    def state_dict(self) -> dict[str, Any]:
        """Return plain values, and the samples that wait as they are."""
        return {
            "first_epoch": self.first_epoch,
            "steps": self.steps,
            "number": self._number,
            "waiting": [(key, self._samples[key]) for key in self._pool.waiting()],
            "reader": self.reader.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from that state."""
        self.first_epoch, self.steps, self._number = state["first_epoch"], state["steps"], state["number"]
        self._samples = dict(state["waiting"])
        self._pool = _pool(self._policy, list(self._samples), self._cap)
        self.reader.load_state_dict(state["reader"])


class _Padded:
    """``[length]``: the most samples of a padded micro-batch whose longest has that length."""

    def __init__(self, budget: int, cap: Cap | None) -> None:
        self._budget, self._cap = budget, cap

    def __getitem__(self, length: int, /) -> int:
        fits = self._budget // length
        return max(1, fits if self._cap is None else min(fits, int(self._cap.limit(np.array([length]))[0])))


def _pool(policy: Pool, keys: list[int], cap: Cap | None) -> Waiting:
    if policy.sequence_packing:
        return PackedRows(keys, policy.max_tokens_for_batch, () if cap is None else (cap,))
    kind = Closest if policy.strategy == "prefer_closest" else First
    return kind(keys, _Padded(policy.max_tokens_for_batch, cap))
