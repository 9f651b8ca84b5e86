"""The lengths of a menu that pad least: exact, by dynamic programming over the histogram of lengths."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddpsched.costs.cost_model import Int


@dataclass(frozen=True)
class LengthMenus:
    """The best menu of n lengths for each n: ``menus[n - 1]``, rising, and ``tokens[n - 1]``, padded with it."""

    menus: list[list[int]]
    tokens: list[int]


def length_menus(lengths: Int, weights: Int, most: int) -> LengthMenus:
    """Return for n = 1 .. ``most`` the n lengths to which rows are padded with the fewest tokens,

        minimise  sum_i weights[i] * (the smallest length of the menu that is at least lengths[i])

    and these tokens. ``lengths``: (n,), of rows; ``weights``: (n,), integers of 0 or more. Menus end at the number of
    distinct lengths, where nothing is padded any more.

    Each length of a best menu is that of some row: another one could be lowered to the next that is. With the distinct
    lengths v_1 < ... < v_D and W_j, the weight of the first j, the fewest tokens of the first j rows with n lengths are

        T_n(j) = min over i < j of  T_{n-1}(i) + v_j * (W_j - W_i)

    For fixed i that is a line in v_j of slope -W_i; lines come by falling slope and are asked at rising v_j, so that a
    queue of the lowest ones answers all of a layer in O(D).

    >>> length_menus(np.array([1, 2, 9, 10]), np.array([5, 1, 1, 1]), 2)
    LengthMenus(menus=[[10], [2, 10]], tokens=[80, 32])
    """
    values, inverse = np.unique(lengths, return_inverse=True)
    before = [0, *np.cumsum(np.bincount(inverse, weights).astype(np.int64)).tolist()]
    ends, size = values.tolist(), len(values)
    total: list[int | None] = [0] + [None] * size  # T_0: no rows need no length
    choices: list[list[int]] = []
    found = LengthMenus([], [])
    for _ in range(min(most, size)):
        total, chosen = _next_layer(total, ends, before)
        choices.append(chosen)
        last = total[size]
        assert last is not None
        found.tokens.append(last)
        found.menus.append(_read(choices, ends, size))
    return found


def _next_layer(total: list[int | None], ends: list[int], before: list[int]) -> tuple[list[int | None], list[int]]:
    """Return T_n from T_{n-1}, and the i of each of its minima; index j is of the first j distinct lengths."""
    lowest: deque[int] = deque()  # the i whose lines are lowest somewhere from the present v_j on, in rising order
    layer: list[int | None] = [None] * len(total)
    chosen = [0] * len(total)

    def at(i: int, value: int) -> int:
        start = total[i]
        assert start is not None
        return start - value * before[i]

    def crossing_is_useless(a: int, b: int, c: int) -> bool:
        """Return whether line c lies below b wherever b lies below a; slopes fall from a to c."""
        ya, yb, yc = at(a, 0), at(b, 0), at(c, 0)
        return (yc - ya) * (before[b] - before[a]) <= (yb - ya) * (before[c] - before[a])

    for j, value in enumerate(ends, 1):
        if total[j - 1] is not None:
            while len(lowest) > 1 and crossing_is_useless(lowest[-2], lowest[-1], j - 1):
                lowest.pop()
            lowest.append(j - 1)
        if not lowest:
            continue
        while len(lowest) > 1 and at(lowest[1], value) <= at(lowest[0], value):
            lowest.popleft()
        layer[j], chosen[j] = at(lowest[0], value) + value * before[j], lowest[0]
    return layer, chosen


def _read(choices: Sequence[list[int]], ends: list[int], size: int) -> list[int]:
    menu = []
    for chosen in reversed(choices):
        menu.append(ends[size - 1])
        size = chosen[size]
    return menu[::-1]


def shared_out(menus: Sequence[LengthMenus], most: int) -> list[list[int]]:
    """Return a menu for each kind of row, at least one length each and ``most`` in all, that pad least together.

    ``menus``: of each kind, whose tokens fall ever less with each length more, or not; all divisions are looked at.
    """
    assert len(menus) <= most, "each kind needs a length"
    best: dict[int, tuple[int, list[int]]] = {0: (0, [])}  # by lengths used: tokens, and how many each kind has
    for left, each in zip(range(len(menus) - 1, -1, -1), menus, strict=True):
        longer: dict[int, tuple[int, list[int]]] = {}
        for used, (tokens, counts) in best.items():
            for count, more in enumerate(each.tokens, 1):
                key, entry = used + count, (tokens + more, [*counts, count])
                if key + left <= most and (key not in longer or entry < longer[key]):
                    longer[key] = entry
        best = longer
    _, counts = min(best.values())
    return [each.menus[count - 1] for each, count in zip(menus, counts, strict=True)]
