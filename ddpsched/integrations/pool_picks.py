"""One rank's micro-batches, chosen from a pool that a reader keeps full; and the samples that wait."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ddpsched.integrations.sample_reader import SampleReader
from ddpsched.planning.policies.pool import BITS, MASK, Closest, First, Packing, Pool, Waiting


@dataclass(frozen=True)
class Picked:
    """A micro-batch: its samples, and their lengths in tokens."""

    samples: list[Any]
    lengths: list[int]


class PoolPicks:
    """``next_step()``: the micro-batches of a step, as ``policy``, of kind pool, chooses them.

    ``budget``: its tokens of a micro-batch. ``first_epoch``: the reader's at the beginning. ``steps``: those that the
    caller has counted.
    """

    def __init__(self, policy: Pool, reader: SampleReader) -> None:
        self.reader, self._policy = reader, policy
        self._pool = _pool(policy, [])
        self._samples: dict[int, Any] = {}  # those that wait, by their keys in the pool
        self._number = 0  # of samples read, over all epochs: what their age is told by
        self.first_epoch = reader.epoch
        self.budget = policy.max_tokens_for_batch
        self.steps = 0

    def next_step(self) -> list[Picked]:
        """``batches_per_optimizer_step`` micro-batches; fewer, or none, at the data's end."""
        picked = []
        for _ in range(self._policy.batches_per_optimizer_step):
            self._fill()
            if not len(self._pool):
                break
            keys = self._pool.choose()
            lengths = [key >> BITS for key in keys]
            picked.append(Picked([self._samples.pop(key) for key in keys], lengths))
        return picked

    def _fill(self) -> None:
        fresh: list[int] = []
        while len(self._pool) + len(fresh) < self._policy.pool_size:
            found = self.reader.read()
            if found is None:
                break
            length, sample = found
            fresh.append(length << BITS | (MASK - self._number))
            self._samples[fresh[-1]] = sample
            self._number += 1
        self._pool.add(fresh)

    def state_dict(self) -> dict[str, Any]:
        """Plain values, and the samples that wait as they are."""
        return {
            "first_epoch": self.first_epoch,
            "steps": self.steps,
            "number": self._number,
            "waiting": [(key, self._samples[key]) for key in self._pool.waiting()],
            "reader": self.reader.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.first_epoch, self.steps, self._number = state["first_epoch"], state["steps"], state["number"]
        self._samples = dict(state["waiting"])
        self._pool = _pool(self._policy, list(self._samples))
        self.reader.load_state_dict(state["reader"])


class _Padded:
    """The most samples of a padded micro-batch by the length of its longest, for lengths that nobody has seen yet."""

    def __init__(self, budget: int) -> None:
        self._budget = budget

    def __getitem__(self, length: int, /) -> int:
        return max(1, self._budget // length)


def _pool(policy: Pool, keys: list[int]) -> Waiting:
    if policy.sequence_packing:
        return Packing(keys, policy.max_tokens_for_batch, ())
    kind = Closest if policy.strategy == "prefer_closest" else First
    return kind(keys, _Padded(policy.max_tokens_for_batch))
