"""pool: each rank chooses what fits together from a pool of samples that the global order feeds."""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Literal, Protocol

import numpy as np
from pydantic import field_validator

from ddpsched.costs.cost_model import Int
from ddpsched.costs.memory_cap import Cap
from ddpsched.costs.shape_menu import Shape
from ddpsched.errors import DataError
from ddpsched.planning.assignment import Assignment
from ddpsched.planning.policies.filling import FillingPolicy, Supply, most_samples
from ddpsched.planning.policy import Setting
from ddpsched.planning.shapes.choose import lengths_that_pad_least, within_budget
from ddpsched.planning.shapes.observed import observe
from ddpsched.planning.steps.context import Context
from ddpsched.table import Positive, Tokens

# A waiting sample is one integer: its length, and below that its youth, so that of equals the oldest is the largest.
BITS = 40
MASK = (1 << BITS) - 1
LONGEST = 1 << (63 - BITS)


class Pool(FillingPolicy):
    """Fill each micro-batch from the rank's pool: its oldest sample, so that none waits for ever, and others that fit.

        padded    count * longest <= max_tokens_for_batch          packed    sum of lengths <= max_tokens_for_batch

    Which others:

    ================ =========================================================================
    prefer_closest   the longest of those not longer than its longest, the oldest of equals;
                     when none is left, the shortest of the longer ones
    prefer_first     the oldest of those not longer than its longest; then the same
    sequence_packing the oldest, whatever their length; the last ones are those that fill the row
    ================ =========================================================================

    The pool is filled up again before each micro-batch. At the end of the order all ranks choose from one common pool,
    so that they end together and the last micro-batches are as full as any.

    Options: ``max_tokens_for_batch``, tokens of a micro-batch; a longer sample runs alone. ``pool_size``, samples each
    rank chooses from. ``strategy``. ``sequence_packing``: rows without padding; strategy is then ignored.
    ``infinite_loop``: with steps, another epoch follows; false ends after one. ``batches_per_optimizer_step``,
    micro-batches of each rank. Source: cosmos-rl's load-balanced dynamic batching.
    """

    kind: Literal["pool"] = "pool"
    max_tokens_for_batch: Tokens = 32768
    """Tokens of a micro-batch; a longer sample runs alone."""
    pool_size: Positive = 32
    """Samples that each rank chooses from."""
    strategy: Literal["prefer_closest", "prefer_first"] = "prefer_closest"
    """Which sample joins a micro-batch next: the closest in length that fits, or the oldest that fits."""
    sequence_packing: bool = False
    """Fill rows without padding; strategy is then ignored."""
    infinite_loop: bool = True
    """With steps, another epoch follows; false ends after one."""

    @field_validator("max_tokens_for_batch", mode="before")
    @classmethod
    def _one_number(cls, value: Any) -> Any:
        if isinstance(value, list | tuple):
            raise ValueError(f"{value} bounds two parts, as kind = 'token_budget' does; pool takes one number")
        return value

    @property
    def packs(self) -> bool:
        return self.sequence_packing

    @property
    def window(self) -> tuple[str, int]:
        return "pool_size", self.pool_size

    @property
    def remarks(self) -> list[str]:
        if not self.sequence_packing or "strategy" not in self.model_fields_set:
            return []
        return ["policy.sequence_packing fills rows by their sum of tokens; policy.strategy is ignored"]

    def over_budget(self, lengths: Int) -> int:
        return int((lengths > self.max_tokens_for_batch).sum())

    def check(self, setting: Setting) -> None:
        super().check(setting)
        if not self.infinite_loop and (setting.epochs or 1) > 1:
            raise ValueError(
                f"policy.infinite_loop = false ends after one epoch, but epochs = {setting.epochs}; leave out one of "
                "the two, or give steps, a most that one epoch may end before"
            )

    def shapes(self, context: Context, most: int) -> list[Shape]:
        """Return the lengths that pad this epoch's micro-batches least, each with the most rows that one there has.

        Later ones keep to these: where the order ends, all ranks' pools are one, which holds more.
        """
        if self.sequence_packing:
            return super().shapes(context, most)
        lengths = context.lengths.lengths(context.order)
        observed = observe(self(context), lengths)
        menu = lengths_that_pad_least(observed, lengths, most)
        rows = np.zeros(len(menu), dtype=np.int64)
        np.maximum.at(rows, np.searchsorted(menu, observed.longest), np.minimum(observed.counts, self.pool_size))
        rows[rows == 0] = self.pool_size  # of samples that no micro-batch among the first has
        return [
            (min(most, held), length)
            for most, (held, length) in zip(rows.tolist(), within_budget(menu, self.max_tokens_for_batch), strict=True)
        ]

    def fill(self, supply: Supply) -> Iterator[Assignment]:
        """Yield each step; a sample over the budget runs alone.

        Raises InfeasibleError where a sample is over a rank's memory, DataError for samples of millions of tokens.
        """
        cursor, longest = supply.cursor, int(supply.lengths.max())
        if longest >= LONGEST:
            raise DataError(f"a sample has {longest:,} tokens, a pool takes samples below {LONGEST:,}; cut or split it")
        positions = np.arange(len(supply), dtype=np.int64)
        keys: list[int] = ((supply.lengths << BITS) | (MASK - positions)).tolist()
        new = _new_pool(self, supply)
        waiting = supply.windows or (positions[:0],) * supply.world_size
        pools = [new([keys[p] for p in each.tolist()]) for each in waiting]
        while True:
            # of each rank, micro-batch by micro-batch
            chosen: list[list[list[int]]] = [[] for _ in pools]
            for _ in range(self.batches_per_optimizer_step):
                for rank in range(supply.world_size):
                    fresh = keys[cursor : cursor + max(0, self.pool_size - len(pools[rank]))]
                    cursor += len(fresh)
                    pools[rank].add(fresh)
                    if cursor == len(keys) and pools[0] is not pools[-1]:  # the order ends: one pool for all ranks
                        pools = [new([key for pool in pools for key in pool.waiting()])] * len(pools)
                    if len(pools[rank]):
                        chosen[rank].append(pools[rank].choose())
            taken = [key for rank in chosen for micro in rank for key in micro]
            if not taken:
                return
            yield Assignment(
                _positions(taken),
                tuple(tuple(map(len, rank)) for rank in chosen),
                method="pool",
                packed=self.sequence_packing,
                cursor=cursor,
                windows=_waiting(pools),
            )


def _waiting(pools: list["Waiting"]) -> tuple[Int, ...]:
    """Return the positions that wait at each rank, the oldest first; of a common pool at rank 0."""
    keys = [pool.waiting() if pool not in pools[:rank] else [] for rank, pool in enumerate(pools)]
    return tuple(np.sort(_positions(each)) for each in keys)


def _positions(keys: list[int]) -> Int:
    return MASK - (np.array(keys, dtype=np.int64) & MASK)


class Most(Protocol):
    """``[length]``: the most samples of a micro-batch whose longest has that length; a list, or a rule."""

    def __getitem__(self, length: int, /) -> int: ...


def _new_pool(policy: Pool, supply: Supply) -> Callable[[list[int]], "Waiting"]:
    budget = policy.max_tokens_for_batch
    most = [max(1, fits) for fits in most_samples(supply.lengths, budget, supply.caps)]
    if supply.menu is not None:
        most = np.minimum(most, supply.menu.most_rows(np.arange(len(most)))).tolist()
    if policy.sequence_packing:
        return partial(PackedRows, budget=budget, caps=supply.caps or ())
    return partial(Closest if policy.strategy == "prefer_closest" else First, most=most)


class Waiting(ABC):
    """The samples that wait at one rank."""

    def __init__(self, keys: list[int]) -> None:
        self._sorted, self._arrived = sorted(keys), sorted(keys, key=_age)

    def __len__(self) -> int:
        return len(self._sorted)

    def waiting(self) -> list[int]:
        """Return the keys of all samples that wait."""
        return self._sorted

    def add(self, fresh: list[int]) -> None:
        """Add samples younger than all that wait, the oldest first."""
        if fresh:  # at the end of the order thousands of ranks ask one large pool, each without new samples
            self._arrived += fresh
            self._sorted += fresh
            self._sorted.sort()

    @abstractmethod
    def choose(self) -> list[int]:
        """Take a micro-batch out; at least one sample waits."""


class Closest(Waiting):
    """prefer_closest."""

    def __init__(self, keys: list[int], most: Most) -> None:
        super().__init__(keys)
        self._most = most
        self._gone: set[int] = set()  # of those that arrived

    def choose(self) -> list[int]:
        place = next(place for place, key in enumerate(self._arrived) if key not in self._gone)
        self._gone.difference_update(self._arrived[:place])
        oldest = self._arrived[place]
        del self._arrived[: place + 1]
        del self._sorted[bisect_left(self._sorted, oldest)]
        length = oldest >> BITS
        room = self._most[length] - 1
        others = self._not_longer(length, room)
        if len(others) < room:
            others += _longer(self._sorted, self._most, 1 + len(others))
        self._gone.update(others)
        return [oldest, *others]

    def _not_longer(self, length: int, room: int) -> list[int]:
        return _take(self._sorted, length, room)


class First(Closest):
    """prefer_first."""

    def _not_longer(self, length: int, room: int) -> list[int]:
        above = (length + 1) << BITS
        oldest = list(islice((key for key in self._arrived if key < above and key not in self._gone), room))
        for key in oldest:
            del self._sorted[bisect_left(self._sorted, key)]
        return oldest


class PackedRows(Waiting):
    """sequence_packing: rows of at most ``budget`` tokens, and of what every rank's memory holds."""

    def __init__(self, keys: list[int], budget: int, caps: tuple[Cap, ...]) -> None:
        super().__init__(keys)
        self._budget, self._caps = budget, caps

    def choose(self) -> list[int]:
        # the end of a row is left to samples that fill it to the last token: room for one or two of middling length
        middling = 2 * (self._sorted[len(self._sorted) // 2] >> BITS)
        room, count = self._budget, 0
        for key in self._arrived:
            left = room - (key >> BITS)
            if left < middling and count:
                break
            room, count = left, count + 1
        chosen, self._arrived = self._arrived[:count], self._arrived[count:]
        for key in chosen:
            del self._sorted[bisect_left(self._sorted, key)]
        for key in _filling(self._sorted, room):
            self._arrived.remove(key)
            chosen.append(key)
        held = self._held(chosen)
        if held < len(chosen):
            self._arrived = sorted(chosen[held:] + self._arrived, key=_age)
            self._sorted = sorted(self._arrived)
        return chosen[:held]

    def _held(self, keys: list[int]) -> int:
        """Return how many of these, from the first on, fit into memory as one row; at least one."""
        lengths = np.array(keys) >> BITS
        return min((int((np.cumsum(cap.weigh(lengths)) <= cap.room).sum()) for cap in self._caps), default=len(keys))


def _age(key: int) -> int:
    return -(key & MASK)


def _take(keys: list[int], length: int, room: int) -> list[int]:
    """Take up to ``room`` of the sorted keys not longer than ``length`` out: the longest, the oldest of equals."""
    stop = bisect_left(keys, (length + 1) << BITS)
    start = max(0, stop - room)
    taken = keys[start:stop]
    del keys[start:stop]
    return taken


def _longer(keys: list[int], most: Most, count: int) -> list[int]:
    """Take the shortest of the sorted keys out, as long as a batch of ``count`` shorter samples may grow by them."""
    taken: list[int] = []
    while keys:
        length = keys[0] >> BITS
        room = most[length] - count - len(taken)
        if room <= 0:
            break
        taken += _take(keys, length, room)
    return taken


def _filling(keys: list[int], room: int) -> list[int]:
    """Take the sorted keys out that fill ``room`` to the last token, one or two; else the longest that fits, and on."""
    taken: list[int] = []
    while keys and keys[0] >> BITS <= room:
        for place in _pair(keys, room):
            taken.append(keys.pop(place))
            room -= taken[-1] >> BITS
    return taken


def _pair(keys: list[int], room: int) -> list[int]:
    """Return the places, falling, of one key of this length or of two of this sum; else of the longest that fits."""
    last = bisect_left(keys, (room + 1) << BITS) - 1
    low, high = 0, last if keys[last] >> BITS < room else 0
    while low < high:
        total = (keys[low] >> BITS) + (keys[high] >> BITS)
        if total == room:
            return [high, low]
        low, high = (low + 1, high) if total < room else (low, high - 1)
    return [last]
