"""Small iterable data sets, and pool streams over them, for tests."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ddpsched import PoolStream
from ddpsched.data.embedded.length_histogram import sst2_lengths

LENGTHS = sst2_lengths(500, np.random.default_rng(0)).tolist()


Sample = tuple[int, int]  # number, length


class Rows:
    """A data set with a new order in each epoch.

    ``opened``: the epochs begun. ``given``: the number of samples handed out.
    """

    def __init__(self, lengths: Any = LENGTHS, shuffles: bool = True) -> None:
        self.rows, self.shuffles = list(enumerate(lengths)), shuffles
        self.epoch, self.opened, self.given = 0, list[int](), 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def order(self) -> list[Sample]:
        places = np.random.default_rng(self.epoch).permutation(len(self.rows)).tolist()
        return [self.rows[place] for place in places] if self.shuffles else self.rows

    def __iter__(self) -> Iterator[Sample]:
        self.opened.append(self.epoch)
        for row in self.order():
            self.given += 1
            yield row


class Stateful(Rows):
    """The same data, with a state of its position, as StatefulDataLoader and datasets have."""

    place = begin = 0

    def __iter__(self) -> Iterator[Sample]:
        self.opened.append(self.epoch)
        self.place, self.begin = self.begin, 0
        for row in self.order()[self.place :]:
            self.given += 1
            self.place += 1
            yield row

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.begin = state["place"]


def length_of(sample: Sample) -> int:
    return sample[1]


OF_STREAM = ("world", "max_num_steps", "infinite_loop", "collate_fn", "sample_padding_fn", "agree")


def stream(rows: Any = None, **options: Any) -> PoolStream:
    """Return a pool stream; ``options`` are the policy's or the stream's."""
    more = {key: options.pop(key) for key in list(options) if key in OF_STREAM}
    policy = {"kind": "pool", "max_tokens_for_batch": 400, **options}
    return PoolStream(Rows() if rows is None else rows, length_of, policy=policy, **more)


def numbers(lists: list[list[list[Sample]]]) -> list[list[list[int]]]:
    """Return the samples of each step and micro-batch, sorted."""
    return [[sorted(number for number, _ in batch) for batch in batches] for batches in lists]


KINDS: dict[str, dict[str, Any]] = {
    "prefer_closest": {},
    "prefer_first": {"strategy": "prefer_first"},
    "packing": {"sequence_packing": True},
}
