"""Windows over one global order have each id once, whatever the counts."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ddpsched.planning.steps.windows import advance, fill


@given(st.integers(0, 60), st.integers(1, 5), st.integers(1, 8), st.randoms(use_true_random=False))
def test_each_id_once_and_first_in_first_out(num_samples: int, world_size: int, prefetch: int, draw) -> None:
    order = np.random.default_rng(num_samples).permutation(num_samples)
    windows, taken = fill(order, world_size, prefetch), []
    while sum(windows.sizes):
        counts = [draw.randint(0, size) for size in windows.sizes]
        if not sum(counts):
            continue
        before = windows
        taken += [i for ids, count in zip(windows.ids, counts, strict=True) for i in ids[:count]]
        windows = advance(windows, order, counts, prefetch)
        for old, new, count in zip(before.ids, windows.ids, counts, strict=True):
            assert new[: len(old) - count].tolist() == old[count:].tolist(), "leftovers stay at the front"
            assert len(new) <= prefetch
        waiting = [i for ids in windows.ids for i in ids]
        assert sorted(taken + waiting) == sorted(order[: windows.cursor].tolist())
        assert windows.cursor == num_samples or windows.sizes == [prefetch] * world_size
    assert sorted(taken) == list(range(num_samples))


def test_the_cursor_moves_by_what_was_consumed() -> None:
    order = np.arange(20)
    windows = advance(fill(order, 2, 4), order, [3, 1], 4)
    assert windows.cursor == 12
    assert [ids.tolist() for ids in windows.ids] == [[3, 8, 9, 10], [5, 6, 7, 11]]


def test_the_rest_is_dealt_evenly() -> None:
    order = np.arange(10)
    windows = advance(fill(order, 2, 4), order, [4, 0], 4)
    assert windows.sizes == [2, 4]
    assert fill(order[:5], 3, 4).sizes == [2, 2, 1]
