"""Megatron-LM's steps: each sample's tokens once, groups of ranks alike, and what its barriers cost."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import ddpsched
from ddpsched.compare.arms import Question, Row, compare
from ddpsched.errors import InfeasibleError, PeerMissing
from ddpsched.parts import fault_of, head_and_tail
from ddpsched.peers import PEERS, Peer, Problem, SplitStep
from ddpsched.peers.megatron import _microbatches, starting_point
from ddpsched.step_plan import Microbatch

GAMMA = {"kind": "padded_tokens", "gamma": 1 / 24576}


def problem(size: int = 1003, **changes: int | None) -> Problem:
    rng = np.random.default_rng(size)
    lengths = np.clip(rng.lognormal(2.5, 1, size), 1, 128).astype(np.int64)
    given = Problem(lengths=lengths, order=rng.permutation(size), world_size=8, global_batch=32, max_tokens=16)
    return replace(given, **changes)


def asked(given: Problem) -> list[SplitStep]:
    try:
        return list(PEERS["megatron"].steps(given))
    except PeerMissing as missing:
        pytest.skip(missing.reason)  # an optional package; `make peers` installs it, and runs this


@pytest.mark.parametrize("world_size", [2, 4, 6, 8, 64])
@pytest.mark.parametrize("tokens", [None, 64, 128])
def test_each_token_is_there_once(world_size: int, tokens: int | None) -> None:
    given = problem(world_size=world_size, max_tokens=tokens)
    most = tokens or starting_point(given)
    for turn, step in enumerate(asked(given)):
        batch = given.order[turn * 32 : (turn + 1) * 32]
        assert all(len(group) == world_size for group in step)
        micros = [(place, micro) for place, group in enumerate(step) for rank in group for micro in rank]
        assert sorted(id for _, micro in micros for id in micro.counted.tolist()) == sorted(batch.tolist())
        split = {int(micro.ids[0]) for _, micro in micros if micro.part}
        for id in split:
            of_sample = [(place, micro.part) for place, micro in micros if int(micro.ids[0]) == id]
            assert fault_of(part for _, part in of_sample if part) is None
            assert sum(part.tokens for _, part in of_sample if part) == given.lengths[id]
            assert len({place for place, _ in of_sample}) == 1, "its ranks run it at once, in one group"
        for _, micro in micros:
            assert len(micro) == 1
            assert (micro.part.tokens if micro.part else given.lengths[micro.ids[0]]) <= most


def test_ranks_that_share_a_sample_share_all_of_a_group() -> None:
    """So that a rank waits only at the barrier: all samples of its set of ranks begin and end together."""
    given = problem()
    given = replace(given, lengths=np.maximum(given.lengths, 8))  # a token for each rank
    for group in (group for step in asked(given) for group in step):
        lists = [tuple(int(micro.ids[0]) for micro in rank) for rank in group]
        ranks_of = Counter(id for ids in lists for id in ids)
        for ids in lists:
            assert ids, "no rank is idle in a group"
            assert {ranks_of[id] for id in ids} == {lists.count(ids)}


def test_the_same_question_has_the_same_answer() -> None:
    def flat(steps: list[SplitStep]) -> list[list[tuple[int, object]]]:
        return [[(int(m.ids[0]), m.part) for m in rank] for step in steps for group in step for rank in group]

    assert flat(asked(problem())) == flat(asked(problem()))


def test_the_default_holds_the_longest_sample_on_a_power_of_two_of_ranks() -> None:
    assert starting_point(problem(world_size=8)) == 128 // 8
    assert starting_point(problem(world_size=6)) == 128 // 4
    assert starting_point(problem(world_size=1)) == 128


def test_a_sample_that_fits_nowhere_is_refused_with_the_remedy() -> None:
    given = problem(world_size=6, max_tokens=31)
    with pytest.raises((InfeasibleError, PeerMissing)) as raised:
        PEERS["megatron"].steps(given)
    if isinstance(raised.value, PeerMissing):
        pytest.skip(raised.value.reason)
    assert "6 ranks of 31 tokens hold one of 124, and the longest has 128; give --max-tokens 32 or more" in str(
        raised.value
    )
    (_, row) = compare(Question(given.lengths, 6, 32, max_tokens=31), ["packed"], ["megatron"])
    assert row.skipped == str(raised.value)
    assert row.figures is None


def test_a_sample_of_fewer_tokens_than_ranks_is_on_as_many_as_it_has() -> None:
    micros = _microbatches([[5, 6], [5, 6], [5, 6], [5, 6]], {5: 2, 6: 9})
    assert [[int(micro.ids[0]) for micro in rank] for rank in micros] == [[5, 6], [5, 6], [6], [6]]
    assert fault_of(rank[0].part for rank in micros[:2] if rank[0].part) is None
    whole = _microbatches([[7], [8]], {7: 1, 8: 3})
    assert [rank[0].part for rank in whole] == [None, None]


def test_what_is_dropped_or_repeated_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of two groups: samples 0 whole, 1 on two ranks, then 2; 1 comes again, and 3 never."""
    first, second = (Microbatch([1], packed=True, part=part) for part in head_and_tail(8, 2))
    whole = {id: Microbatch([id], packed=True) for id in (0, 2)}
    steps = [[[[whole[0], first], [second]], [[], [whole[2]]]], [[[first], [second]]]]
    peer = Peer("invented", "", True, lambda problem: iter(steps), splits=True)
    monkeypatch.setitem(PEERS, "invented", peer)
    (_, row) = compare(Question(np.array([2, 8, 4, 6]), 2, 3), ["static"], ["invented"])
    figures = row.figures
    assert figures is not None
    assert (figures.dropped, figures.repeated, figures.steps, row.same_gradient) == (1, 1, 2, False)
    # group by group: 2 and 4 with the second rank waiting, 4 alone, and 4 again
    assert figures.yardstick == pytest.approx((6 + 4 + 4) / ((2 + 8 + 4 + 8) / 2))
    assert figures.split == pytest.approx(2 / 4)


@pytest.mark.parametrize(
    ("law", "cut", "world_size", "batch", "tokens", "least", "most"),
    [
        ("encyclopedia", 65536, 8, 64, 8192, 1.30, 1.50),
        ("encyclopedia", 65536, 8, 64, 16384, 1.50, 1.75),
        ("encyclopedia", 65536, 64, 512, 8192, 1.60, 1.80),
        ("encyclopedia", 65536, 64, 512, 16384, 3.00, 3.40),
        ("chat", 126000, 8, 64, 16384, 1.04, 1.07),
    ],
)
def test_the_yardstick_of_long_tails(
    law: str, cut: int, world_size: int, batch: int, tokens: int, least: float, most: float
) -> None:
    lengths = np.minimum(ddpsched.law_lengths(law, 16384, seed=1), cut)
    row = _measured(Question(lengths, world_size, batch, max_tokens=tokens, cost=GAMMA))
    assert row.figures is not None
    assert least <= row.figures.yardstick <= most
    assert (row.figures.dropped, row.figures.repeated, row.same_gradient) == (0, 0, True)


def _measured(question: Question) -> Row:
    (_, row) = compare(question, ["static"], ["megatron"])
    if row.skipped:
        pytest.skip(row.skipped)
    return row
