"""Checks of the samples that ranks ran: correct streams hold, and each kind of wrong one gets its cause."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpsched.certify.stream_checks import agreement, exactly_once, resumption, same_collectives, same_counts

Streams = list[list[np.ndarray]]


@st.composite
def epochs(draw: st.DrawFn, least_steps: int = 2, least_ranks: int = 1) -> Streams:
    """Return ``[r][s]``: a shuffled epoch cut into steps and ranks; the smaller last step may leave a rank empty."""
    world_size = draw(st.integers(least_ranks, 4))
    size = draw(st.integers(2 * world_size, 12))
    steps = draw(st.integers(least_steps, 6))
    count = size * (steps - 1) + draw(st.integers(1, size))
    order = np.random.default_rng(draw(st.integers(0, 2**16))).permutation(count)
    streams: Streams = [[] for _ in range(world_size)]
    for start in range(0, count, size):
        batch = order[start : start + size]
        cuts = np.sort(draw(st.lists(st.integers(0, len(batch)), min_size=world_size - 1, max_size=world_size - 1)))
        parts = np.split(batch, cuts)
        if len(batch) == size and min(map(len, parts)) < 2:
            parts = np.array_split(batch, world_size)
        for each, part in zip(streams, parts, strict=True):
            each.append(part)
    return streams


def count_of(streams: Streams) -> int:
    return sum(len(part) for each in streams for part in each)


def digests_of(streams: Streams) -> list[list[int]]:
    """Return every rank's digest of every step; here the digest is of the ids on all ranks."""
    steps = [hash(tuple(np.concatenate(parts).tolist())) for parts in zip(*streams, strict=True)]
    return [list(steps) for _ in streams]


@given(epochs())
def test_a_whole_epoch_holds(streams: Streams) -> None:
    assert exactly_once(streams, count_of(streams)).holds
    assert exactly_once(streams, np.arange(count_of(streams))).holds
    assert agreement(digests_of(streams), streams).holds
    assert same_counts(streams).holds


@given(epochs(), st.data())
def test_a_repeated_sample_is_named_with_its_places(streams: Streams, data: st.DataObject) -> None:
    step = data.draw(st.integers(0, len(streams[0]) - 2))
    rank = data.draw(st.integers(0, len(streams) - 1))
    twice, lost = streams[0][step][0], streams[rank][step + 1][:1]
    if not len(lost):
        return
    streams[rank][step + 1] = np.append(twice, streams[rank][step + 1][1:])
    check = exactly_once(streams, count_of(streams))
    assert not check.holds
    assert f"ran more than once: {twice} (step {step} on rank 0, then step {step + 1} on rank {rank})" in check.says
    assert f"never ran: {lost[0]}" in check.says
    assert check.cause is not None


@given(epochs(), st.data())
def test_a_missing_sample_is_named(streams: Streams, data: st.DataObject) -> None:
    count = count_of(streams)
    step = data.draw(st.integers(0, len(streams[0]) - 2))
    lost, streams[0][step] = streams[0][step][0], streams[0][step][1:]
    check = exactly_once(streams, count)
    assert not check.holds
    assert f"1 never ran: {lost}" in check.says


def test_an_id_that_is_no_sample() -> None:
    check = exactly_once([[np.array([0, 1, 7])]], 2)
    assert not check.holds
    assert "1 are no samples of this epoch: 7" in check.says


def stream(*steps: list[int]) -> list[np.ndarray]:
    return [np.array(ids) for ids in steps]


CAUSES: dict[str, tuple[Streams, int]] = {
    "the last, incomplete batch": ([stream([0, 1], [2, 3]), stream([4, 5], [6, 7])], 9),
    "filled up with samples that had run": ([stream([0, 1], [4]), stream([2, 3], [0])], 5),
    "a sampler sharded twice": ([stream([0], [4]), stream([3], [7])], 8),
    "ranks 0, 1 run the same samples in step 0": ([stream([0, 1]), stream([1, 0])], 4),
    "rank 0 runs in step 1 what it had run in step 0": ([stream([0, 1], [0, 1]), stream([2, 3], [4, 5])], 8),
    "in place of others": ([stream([0, 1], [2, 0])], 4),
    "holds them more than once": ([stream([0, 1], [2, 3, 0], [4, 5])], 6),
    "leaves them out": ([stream([0, 1], [2], [4, 5])], 6),
}


@pytest.mark.parametrize("words", CAUSES)
def test_the_pattern_behind_wrong_samples(words: str) -> None:
    check = exactly_once(*CAUSES[words])
    assert not check.holds
    assert words in (check.cause or ""), check


@given(epochs(least_ranks=2), st.data())
def test_a_stale_plan_is_told_by_rank_and_step(streams: Streams, data: st.DataObject) -> None:
    digests = digests_of(streams)
    rank = data.draw(st.integers(0, len(streams) - 1))
    step = data.draw(st.integers(1, len(streams[0]) - 1))
    held = data.draw(st.integers(0, step - 1))
    digests[rank][step] = digests[rank][held]
    check = agreement(digests, streams)
    assert not check.holds
    assert f"step {step}: rank {rank} holds another plan" in check.says
    assert check.cause == f"rank {rank} holds a stale plan: that of step {held}"


def test_the_minority_is_named_and_two_alone_are_not_blamed() -> None:
    streams = [[np.array([r])] for r in range(3)]
    odd = agreement([[5], [5], [6]], streams)
    assert "rank 2 holds another plan than ranks 0, 1" in odd.says
    assert "rank 2 planned from another config" in (odd.cause or "")
    even = agreement([[5], [6]], streams[:2])
    assert "which is right cannot be determined" in even.says


def test_equal_digests_of_unequal_streams() -> None:
    check = agreement([[5], [5]], [[np.array([0, 1])], [np.array([1, 2])]])
    assert not check.holds
    assert "ranks 0, 1 both run sample 1" in check.says


def test_nothing_to_agree_on_does_not_hold() -> None:
    assert not agreement([[], []], [[], []]).holds
    assert not agreement([[1], [1, 2]], [[], []]).holds


def test_a_rank_that_makes_fewer_steps() -> None:
    check = same_counts([[1, 2, 3], [1, 2]])
    assert not check.holds
    assert "rank 1 made 2 steps, rank 0 3" in check.says
    assert "in step 2 rank 0 would wait for a gradient in vain" in (check.cause or "")


COUNTS: list[tuple[list[dict[str, int]], list[int], str, str]] = [
    (
        [{"step 2": 12}, {"step 2": 11}, {"step 2": 12}],
        [0, 2],
        "step 2: rank 1 did 11 collectives, ranks 0, 2 did 12",
        "rank 1 is short of one; ranks 0, 2 waited in vain",
    ),
    ([{"step 0": 4}, {"step 0": 3}], [0], "rank 1 did 3 collectives, rank 0 did 4", "rank 1 is short of one; rank 0"),
    ([{"a": 4}, {"a": 4}, {"a": 6}], [2], "rank 2 did 6", "rank 2 did 2 too many; rank 2 waited in vain"),
    ([{"a": 4, "b": 1}, {"a": 4}], [], "rank 1 did not reach b", "stopped before"),
]


@pytest.mark.parametrize(("counts", "waited", "says", "cause"), COUNTS)
def test_uneven_collectives(counts: list[dict[str, int]], waited: list[int], says: str, cause: str) -> None:
    check = same_collectives(counts, waited)
    assert not check.holds
    assert says in check.says
    assert cause in (check.cause or "")


def test_even_collectives() -> None:
    assert same_collectives([{"a": 4, "b": 0}] * 3).holds
    assert not same_collectives([{}, {}]).holds


@given(epochs(least_steps=3), st.data())
def test_resumption(streams: Streams, data: st.DataObject) -> None:
    whole: list[Any] = digests_of(streams)[0]
    at = data.draw(st.integers(0, len(whole) - 2))
    assert resumption(whole, whole[at + 1 :], at).holds
    assert not resumption(whole, whole, at).holds
    first = streams[0]
    assert resumption(first, [np.array(part) for part in first[at + 1 :]], at).holds
    assert not resumption(whole, [], at).holds
    assert not resumption(whole, [], len(whole) - 1).holds, "nothing was compared"


@pytest.mark.parametrize(
    ("resumed", "words"),
    [
        ([0, 1, 2], "starts over"),
        ([3, 4, 5], "goes back to step 3 and repeats 1 step"),
        ([5, 6, 7], "skips 1 step"),
        ([4, 9, 6], "begins correctly and then leaves"),
        ([9, 8, 7], "another order or seed"),
        ([4, 5], "does not say where the stream ends"),
    ],
)
def test_how_a_resumed_stream_is_wrong(resumed: list[int], words: str) -> None:
    check = resumption(list(range(8)), resumed, at=3)
    assert not check.holds
    assert words in (check.cause or "")
