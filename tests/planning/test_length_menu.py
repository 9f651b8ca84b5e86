"""The lengths that pad least, against all menus."""

import itertools
from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpsched.planning.shapes.length_menu import length_menus, shared_out


def padded(menu: Sequence[int], lengths: Sequence[int], weights: Sequence[int]) -> int:
    """Return the tokens of all rows on a menu."""
    return sum(
        weight * min(each for each in menu if each >= length) for length, weight in zip(lengths, weights, strict=True)
    )


def all_menus(lengths: Sequence[int], size: int) -> list[tuple[int, ...]]:
    """Return all menus of so many lengths that hold the longest."""
    values = sorted(set(lengths))
    return [menu for menu in itertools.combinations(values, size) if menu[-1] == values[-1]]


def test_no_menu_pads_less_on_2000_histograms() -> None:
    random = np.random.default_rng(0)
    for _ in range(2000):
        size = int(random.integers(1, 9))
        lengths, weights = random.integers(1, 30, size), random.integers(0, 6, size)
        found = length_menus(lengths, weights, int(random.integers(1, 7)))
        for number, (menu, tokens) in enumerate(zip(found.menus, found.tokens, strict=True), 1):
            best = min(padded(each, lengths.tolist(), weights.tolist()) for each in all_menus(lengths.tolist(), number))
            assert padded(menu, lengths.tolist(), weights.tolist()) == tokens == best
            assert len(menu) == number
            assert menu[-1] == lengths.max()


def test_it_ends_where_nothing_is_padded() -> None:
    found = length_menus(np.array([4, 9, 9]), np.array([1, 1, 1]), 5)
    assert found.menus == [[9], [4, 9]]
    assert found.tokens == [27, 22]


KINDS = st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=4), min_size=1, max_size=3)


@settings(max_examples=60)
@given(KINDS, st.integers(0, 4))
def test_no_sharing_out_pads_less(kinds: list[list[int]], spare: int) -> None:
    most = len(kinds) + spare
    menus = [length_menus(np.array(kind), np.ones(len(kind), dtype=np.int64), most) for kind in kinds]
    chosen = shared_out(menus, most)
    ways = itertools.product(*(range(1, len(each.tokens) + 1) for each in menus))
    best = min(
        sum(each.tokens[count - 1] for each, count in zip(menus, counts, strict=True))
        for counts in ways
        if sum(counts) <= most
    )
    assert sum(map(len, chosen)) <= most
    assert sum(padded(menu, kind, [1] * len(kind)) for menu, kind in zip(chosen, kinds, strict=True)) == best
