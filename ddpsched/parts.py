"""Part: the tokens of one sample that one rank of several computes, and the checks that parts are a whole sample."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

Number = TypeVar("Number", int, float)
Range = tuple[int, int]  # tokens from the first number to before the second


@dataclass(frozen=True)
class Part:
    """Part ``index`` (from 0) of the ``count`` parts of a sample: its tokens in ``ranges``, rising.

    Part 0 stands for the sample where samples are counted, so that each counts once.
    """

    index: int
    count: int
    ranges: tuple[Range, ...]

    @property
    def tokens(self) -> int:
        """The number of its tokens."""
        return sum(end - start for start, end in self.ranges)

    @property
    def is_counted(self) -> bool:
        """Whether this part stands for the sample."""
        return self.index == 0

    def numbers(self) -> list[int]:
        """Return all that it is as integers, for digests."""
        return [self.index, self.count, len(self.ranges), *(edge for each in self.ranges for edge in each)]


def head_and_tail(length: int, count: int) -> tuple[Part, ...]:
    """Return the parts of a sample of ``length`` tokens, alike in tokens and in causal attention, each to a token.

    Part i has the i-th chunk from the front and the i-th one from the back: what the front saves in keys to attend to,
    the back has more. Two chunks that meet are one range. ``count`` is at most ``length``, so that no part is empty.

    >>> [part.ranges for part in head_and_tail(12, 3)]
    [((0, 2), (10, 12)), ((2, 4), (8, 10)), ((4, 8),)]
    """
    parts, front, back = [], 0, length
    for index in range(count):
        tokens = length // count + (index < length % count)
        start, end = front + tokens - tokens // 2, back - tokens // 2  # part 0 has the first token
        ranges = ((front, back),) if start == end else ((front, start), (end, back))
        parts.append(Part(index, count, tuple(each for each in ranges if each[0] < each[1])))
        front, back = start, end
    return tuple(parts)


def fault_of(parts: Iterable[Part]) -> str | None:
    """Return why these are not the parts of one sample, in words; None where they are, however long it is.

    >>> fault_of([Part(0, 2, ((0, 3),)), Part(1, 2, ((4, 6),))])
    'no part has its tokens 3 to 3'
    """
    given = sorted(parts, key=lambda part: part.index)
    count = given[0].count
    if [part.index for part in given] != list(range(count)) or any(part.count != count for part in given):
        numbers = ", ".join(f"{part.index} of {part.count}" for part in given)
        return f"its parts are numbered {numbers}, needs 0 to {count - 1} of {count}"
    done = 0
    for start, end in sorted(each for part in given for each in part.ranges):
        if start > done:
            return f"no part has its tokens {done} to {start - 1}"
        if start < done:
            return f"two parts have its token {start}"
        if end <= start:
            return f"a part has the range {start} to {end}, needs at least a token"
        done = end
    empty = next((part.index for part in given if not part.ranges), None)
    if empty is not None:
        return f"its part {empty} has no token"
    return None if given[0].ranges[0][0] == 0 else "its part 0 lacks its first token, with which it is counted"


def finish_times(ranks: Sequence[Sequence[tuple[Number, int | None]]]) -> list[Number]:
    """Return when each rank has done its micro-batches, (world_size,), where the ranks of a sample wait for each other.

    ``ranks[r]``: of each micro-batch of rank r, in order, its cost, and the sample that it is a part of, or None. The
    parts of a sample begin together, when the last of its ranks is there.

    Raises ValueError where ranks wait for each other for ever: one has a sample before another, and a second rank has
    them the other way round.

    >>> finish_times([[(3, None), (4, 7)], [(4, 7), (1, None)]])
    [7, 8]
    """
    needed = Counter(sample for rank in ranks for _, sample in rank if sample is not None)
    times: list[Any] = [0] * len(ranks)
    places, arrived = [0] * len(ranks), dict[int, list[int]]()
    runnable = list(range(len(ranks)))
    while runnable:
        rank = runnable.pop()
        while places[rank] < len(ranks[rank]):
            cost, sample = ranks[rank][places[rank]]
            if sample is not None:
                members = arrived.setdefault(sample, [])
                members.append(rank)
                if len(members) == needed[sample]:
                    start = max(times[each] for each in members)
                    for each in members:
                        times[each] = start + ranks[each][places[each]][0]
                        places[each] += 1
                    runnable += members
                break
            times[rank] += cost
            places[rank] += 1
    stuck = [rank for rank, micros in enumerate(ranks) if places[rank] < len(micros)]
    if stuck:
        samples = [ranks[rank][places[rank]][1] for rank in stuck]
        raise ValueError(f"ranks {stuck} wait for each other at samples {samples}: they need one order of these")
    return times
