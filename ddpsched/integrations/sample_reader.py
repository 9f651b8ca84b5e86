"""The samples of an iterable data set one after another, epoch after epoch, and how to find the place again."""

import operator
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ddpsched.errors import ConfigError, DataError


class SampleReader:
    """``read()`` gives ``(length, sample)``; ``infinite``: an epoch that is over is followed by the next, else by None.

    Each epoch begins with the iterable's ``set_epoch(e)``, or that of its data set where it is a loader, where there
    is one, and with a new ``iter()``. ``length_fn(sample)``: its tokens.

    ``state_dict()`` holds the iterable's own state where it has ``state_dict`` and ``load_state_dict``, as
    torchdata's StatefulDataLoader and ``datasets.IterableDataset`` do (the latter without its shuffle buffer, and
    warns); then going on takes no time. Else the samples of the epoch that were read before are read again and
    dropped, and their lengths must be those they were.
    """

    def __init__(
        self, iterable: Iterable[Any], length_fn: Callable[[Any], int], infinite: bool = False, epoch: int = 0
    ) -> None:
        self._iterable, self._length_fn, self._infinite = iterable, length_fn, infinite
        self.epoch = epoch
        self.ended = False  # nothing comes any more
        self._count = 0  # samples of this epoch read so far
        self._check = 0  # a checksum of their lengths
        self._samples: Iterator[Any] | None = None
        self._loaded: Mapping[str, Any] | None = None  # the iterable's own state, where one is to be gone on from

    def read(self) -> tuple[int, Any] | None:
        """The next sample and its length; None where the data is at its end.

        Raises DataError for a length that is not an integer of 1 or more, and where an epoch of an infinite reader
        has no sample.
        """
        while not self.ended:
            if self._samples is None:
                self._open()
            assert self._samples is not None
            for sample in self._samples:
                return self._counted(sample), sample
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

    def _open(self) -> None:
        for each in (self._iterable, getattr(self._iterable, "dataset", None)):
            announce = getattr(each, "set_epoch", None)
            if announce is not None:
                announce(self.epoch)
                break
        if self._loaded is not None:
            self._iterable.load_state_dict(self._loaded)  # type: ignore[attr-defined] # looked at in load_state_dict
            self._loaded, self._samples = None, iter(self._iterable)
            return
        self._samples = iter(self._iterable)
        self._read_again()

    def _read_again(self) -> None:
        count, check = self._count, self._check
        self._count = self._check = 0
        assert self._samples is not None
        for sample in self._samples if count else ():
            self._counted(sample)
            if self._count == count:
                break
        if (self._count, self._check) != (count, check):
            raise ConfigError(
                f"the state is of other data: of the {count} samples that epoch {self.epoch} had given, this iterable "
                f"gives {self._count}, or with other lengths; order and data must be the same in every run"
            )

    def _counted(self, sample: Any) -> int:
        number = self._count
        try:
            length = operator.index(self._length_fn(sample))
        except TypeError as error:
            raise DataError(f"length_fn of sample {number} of epoch {self.epoch}: {error}; give its tokens") from None
        if length < 1:
            raise DataError(f"length_fn of sample {number} of epoch {self.epoch} gave {length}, needs at least 1")
        self._count += 1
        self._check = zlib.crc32(length.to_bytes(8, "little"), self._check)
        return length

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the reader."""
        own = None
        if self._stateful and self._count and not self.ended:
            own = self._loaded if self._loaded is not None else self._iterable.state_dict()  # type: ignore[attr-defined]
        return {
            "epoch": self.epoch, "count": self._count, "check": self._check, "ended": self.ended, "iterable": own,
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Stand there; the iterable is not touched before the next ``read()``."""
        self.epoch, self._count, self._check = state["epoch"], state["count"], state["check"]
        self.ended, self._samples = state["ended"], None
        self._loaded = state["iterable"] if self._stateful else None

    @property
    def _stateful(self) -> bool:
        return hasattr(self._iterable, "state_dict") and hasattr(self._iterable, "load_state_dict")
