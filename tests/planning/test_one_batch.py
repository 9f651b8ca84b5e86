"""balance: a batch that exists already, divided over ranks and micro-batches."""

import itertools
import subprocess
import sys
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpsched import Balance, balance
from ddpsched.costs.cost_model import CostModel
from ddpsched.errors import ConfigError, DataError, InfeasibleError
from experiments.benchmarks.rollouts import rollouts

LENGTHS = st.lists(st.integers(1, 60), min_size=4, max_size=40)


def needs(lengths: np.ndarray, micro: np.ndarray, packed: bool) -> int:
    """Return the tokens that a micro-batch takes."""
    part = lengths[micro]
    return int(part.sum() if packed else part.max() * len(part))


def check(found: Balance, lengths: list[int], packed: bool, alpha: float, gamma: float = 0) -> None:
    """Each sample once; costs, makespan and gap by their definitions."""
    given = np.array(lengths)
    assert sorted(found.reorder.tolist()) == list(range(len(lengths)))
    np.testing.assert_array_equal(given[found.reorder][found.restore], given)
    for r, micros in enumerate(found.ranks):
        cost = 0
        for micro in micros:
            part = given[micro] if packed else np.full(len(micro), given[micro].max())
            cost += alpha + sum(max(1, round(length + gamma * length**2)) for length in part.tolist())
            assert micro.tolist() == sorted(micro)
        assert found.costs[r] == cost
        assert found.counts[r] == (0 if r in found.stand_ins else sum(map(len, micros)))
    assert found.makespan == found.costs.max() >= found.lower_bound
    assert found.gap == found.makespan / found.lower_bound - 1


@settings(max_examples=150, deadline=None)
@given(LENGTHS, st.integers(1, 4), st.booleans(), st.integers(0, 30), st.sampled_from([0, 0.01]), st.data())
def test_any_batch(lengths: list[int], ranks: int, packed: bool, alpha: int, gamma: float, data: Any) -> None:
    cap = data.draw(st.none() | st.integers(max(lengths), 200))
    most = data.draw(st.none() | st.integers(1, 6))
    try:
        found = balance(lengths, ranks, max_tokens=cap, max_microbatches=most, alpha=alpha, gamma=gamma, packed=packed)
    except InfeasibleError as error:
        assert cap is not None
        assert most is not None
        least = int(str(error).split("raise max_microbatches to ")[1].split(",")[0])
        assert least > most
        found = balance(lengths, ranks, max_tokens=cap, max_microbatches=least, packed=packed)
        assert max(map(len, found.ranks)) <= least
        return
    check(found, lengths, packed, alpha, gamma)
    assert all(cap is None or needs(np.array(lengths), micro, packed) <= cap for rank in found.ranks for micro in rank)
    assert most is None or max(map(len, found.ranks)) <= most
    assert cap is not None or most is not None or {len(rank) for rank in found.ranks} == {1}
    again = balance(lengths, ranks, max_tokens=cap, max_microbatches=most, alpha=alpha, gamma=gamma, packed=packed)
    assert repr(found) == repr(again)
    assert found.reorder.tolist() == again.reorder.tolist()


@settings(max_examples=100, deadline=None)
@given(LENGTHS, st.integers(1, 4), st.booleans(), st.sampled_from(["rank", "microbatch"]), st.data())
def test_groups_stay_together(lengths: list[int], ranks: int, packed: bool, stay: str, data: Any) -> None:
    size = len(lengths)
    names = [*range(ranks), *data.draw(st.lists(st.integers(0, 9), min_size=size - ranks, max_size=size - ranks))]
    cap = None if stay == "microbatch" else data.draw(st.none() | st.integers(max(lengths), 200))
    found = balance(lengths, ranks, groups=names, groups_stay=stay, max_tokens=cap, alpha=7, packed=packed)
    check(found, lengths, packed, 7)
    places = [(r, m) for r, micros in enumerate(found.ranks) for m, micro in enumerate(micros) for _ in micro]
    by_group: dict[int, set[Any]] = {}
    for position, (r, m) in zip(found.reorder.tolist(), places, strict=True):
        by_group.setdefault(names[position], set()).add(r if stay == "rank" else (r, m))
    assert all(len(each) == 1 for each in by_group.values())
    assert all(cap is None or needs(np.array(lengths), micro, packed) <= cap for rank in found.ranks for micro in rank)
    lists = [[i for i, name in enumerate(names) if name == group] for group in dict.fromkeys(names)]
    same = balance(lengths, ranks, groups=lists, groups_stay=stay, max_tokens=cap, alpha=7, packed=packed)
    assert same.makespan == found.makespan


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(1, 8), st.booleans(), st.data())
def test_as_many_samples_on_each_rank(ranks: int, each: int, packed: bool, data: Any) -> None:
    lengths = data.draw(st.lists(st.integers(1, 60), min_size=ranks * each, max_size=ranks * each))
    found = balance(lengths, ranks, equal_counts=True, packed=packed)
    check(found, lengths, packed, 0)
    assert set(found.counts.tolist()) == {each}
    pairs = balance(lengths * 2, ranks, groups=[*range(ranks * each)] * 2, equal_counts=True, packed=packed)
    assert set(pairs.counts.tolist()) == {2 * each}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=2, max_size=6), st.integers(1, 2), st.booleans(), st.integers(0, 9))
def test_against_every_division(lengths: list[int], ranks: int, packed: bool, alpha: int) -> None:
    """One micro-batch a rank: no division is below the bound, and this one is within Graham's 4/3 of the best."""
    best = min(
        max(
            alpha + (sum(part) if packed else max(part) * len(part))
            for r in range(ranks)
            if (part := [length for length, to in zip(lengths, places, strict=True) if to == r])
        )
        for places in itertools.product(range(ranks), repeat=len(lengths))
        if len(set(places)) == ranks
    )
    found = balance(lengths, ranks, alpha=alpha, packed=packed)
    assert found.lower_bound <= best <= found.makespan
    assert found.makespan <= best * 4 / 3 if packed else found.makespan == best


@pytest.mark.parametrize(("size", "ranks"), [(512, 8), (4096, 64)])
def test_rollouts_without_padding_are_level(size: int, ranks: int) -> None:
    for seed in range(5):
        lengths = rollouts(size, seed)
        assert balance(lengths, ranks).gap <= 0.001
        assert balance(lengths, ranks, max_tokens=16_384).gap <= 0.001
        assert balance(lengths, ranks, max_microbatches=8, packed=False).gap <= 0.03
        assert balance(lengths, ranks, equal_counts=True).gap <= 0.001
        assert balance(lengths, ranks, groups=np.arange(size) // 8).gap <= 0.03


def test_a_tensor_an_array_and_a_list_are_the_same() -> None:
    lengths = [5, 60, 7, 8, 30, 6, 9, 10]
    forms = (lengths, np.array(lengths, dtype=np.int32), torch.tensor(lengths), tuple(lengths))
    assert len({repr(balance(form, 2)) for form in forms}) == 1
    names = [0, 0, 1, 1, 2, 2, 3, 3]
    assert repr(balance(lengths, 2, groups=torch.tensor(names))) == repr(balance(lengths, 2, groups=names))
    texts = balance(lengths, 2, groups=list("aabbccdd"))
    assert repr(texts) == repr(balance(lengths, 2, groups=names))


def test_costs_of_a_calibration_and_of_a_config() -> None:
    lengths = [5, 60, 7, 8, 30, 6, 9, 10]
    model = CostModel(1e-3, 1e-5, 1e-8)
    found = balance(lengths, 2, cost=model)
    assert found.costs.tolist() == [model.packed(np.array(lengths)[found.ranks[r][0]]) for r in range(2)]
    table = {"kind": "affine_quadratic", "alpha": 1e-3, "beta": 1e-5, "gamma": 1e-8}
    assert repr(balance(lengths, 2, cost=table)) == repr(found)


def test_stand_ins_weigh_nothing() -> None:
    found = balance([9, 4, 6], 5, stand_ins=True)
    assert sorted(found.stand_ins) == [(r, 0) for r in range(5) if not found.counts[r]]
    assert len(found.stand_ins) == 2
    assert all(found.ranks[r][0].tolist() == [1] for r, _ in found.stand_ins)
    assert sorted(found.reorder.tolist()) == [0, 1, 2]
    assert {found.sum_scale(rank=r) for r, _ in found.stand_ins} == {0.0}
    assert found.sum_scale(rank=0) == 5 / 3
    with pytest.raises(
        ConfigError, match="2 micro-batches stand in at weight 0, such as number 0 of rank 3; give rank="
    ):
        found.sum_scale()
    assert "a stand-in" in repr(found)
    assert len(found.to_frame()) == 3


def test_a_micro_batch_stands_in_where_lockstep_lacks_one() -> None:
    found = balance([8] * 5, 2, max_tokens=10, lockstep=True, stand_ins=True)
    assert [[micro.tolist() for micro in rank] for rank in found.ranks] == [[[0], [2], [4]], [[1], [3], [0]]]
    assert (found.stand_ins, found.counts.tolist(), found.makespan) == ({(1, 2)}, [3, 2], 24)
    assert [found.sum_scale(rank=1, microbatch=m) for m in range(3)] == [0.4, 0.4, 0.0]
    assert found.sum_scale(rank=0) == 0.4
    assert "2 samples, 1 stand-in" in repr(found)
    assert len(found.to_frame()) == 5
    with pytest.raises(ConfigError, match=r"number 2 of rank 1; give microbatch=, the one that the loss is of"):
        found.sum_scale(rank=1)


@pytest.mark.parametrize("stay", ["rank", "microbatch"])
def test_equal_counts_are_kept_by_groups_that_are_padded(stay: str) -> None:
    found = balance([4, 10, 38, 7], 2, groups=[0, 2, 1, 0], equal_counts=True, packed=False, groups_stay=stay)
    assert found.counts.tolist() == [2, 2]


@pytest.mark.parametrize("lockstep", [False, True])
def test_as_few_micro_batches_as_there_can_be(lockstep: bool) -> None:
    def refused(lengths: list[int], most: int) -> bool:
        try:
            balance(lengths, 2, max_tokens=24, max_microbatches=most, lockstep=lockstep, stand_ins=True)
        except InfeasibleError as error:
            return f"raise max_microbatches to {most + 1}, or max_tokens" in str(error)
        return False

    random = np.random.default_rng(0)
    for _ in range(300):
        lengths = random.integers(2, 14, random.integers(5, 10)).tolist()
        least = next(rows for rows in range(1, 10) if fits(tuple(sorted(lengths)), (24,) * 2 * rows))
        assert not refused(lengths, least)
        assert least == 1 or refused(lengths, least - 1)


@cache
def fits(lengths: tuple[int, ...], rooms: tuple[int, ...]) -> bool:
    """Return whether all lengths find a place, by brute force."""
    if not lengths:
        return True
    return any(
        fits(lengths[:-1], tuple(sorted((*rooms[:i], room - lengths[-1], *rooms[i + 1 :]))))
        for i, room in enumerate(rooms)
        if room >= lengths[-1] and room not in rooms[:i]
    )


def test_it_keeps_no_array_of_the_caller() -> None:
    lengths = np.array([5, 9])
    found = balance(lengths, 2)
    lengths[0] = 1000
    assert found.lengths.tolist() == [5, 9]
    with pytest.raises(ValueError, match="read-only"):
        found.lengths[0] = 1


def test_sums_of_groups_are_exact() -> None:
    lengths = [2**19 + 17 * i for i in range(64)]
    found = balance(lengths, 2, gamma=8191.37, groups=[0] * 40 + [1] * 24)
    assert found.costs.sum() == sum(int(CostModel(0, 1, 8191.37, scale=1).sample(each)) for each in lengths)
    assert balance([100] * 8, 2, max_tokens=np.int8(100)).makespan == 400


def test_names_of_groups_are_kept_apart() -> None:
    found = balance([1, 2, 3, 4], 3, groups=[1, "a", "1", "a"])
    assert sorted(sorted(np.concatenate(rank).tolist()) for rank in found.ranks) == [[0], [1, 3], [2]]
    sets = balance([1, 2, 3, 4], 2, groups=[{0, 1}, {2, 3}])
    assert sorted(sorted(rank[0].tolist()) for rank in sets.ranks) == [[0, 1], [2, 3]]


def test_the_scale_is_the_ranks_over_the_weights() -> None:
    found = balance([9, 4, 6], 2)
    assert found.sum_scale([4, 1, 5]) == found.sum_scale(torch.tensor([4, 1, 5])) == 2 / 10
    for weights, words in (
        ([1, 2], r"weights of shape \(2,\), needs \(3,\), one for each sample"),
        ([1, np.nan, 2], "weight 1 is nan; give numbers of 0 or more"),
        ([1, 2, -1], "weight 2 is -1.0; give numbers of 0 or more"),
        ([0, 0, 0], "all weights are 0; give numbers"),
    ):
        with pytest.raises(DataError, match=words):
            found.sum_scale(weights)


def test_a_frame_has_a_row_a_sample() -> None:
    lengths = np.array([5, 60, 7, 8, 30, 6, 9, 10])
    frame = balance(lengths, 2, max_tokens=70).to_frame()
    assert sorted(frame["position"]) == list(range(8))
    assert (frame["length"] == lengths[frame["position"]]).all()
    assert frame.groupby(["rank", "microbatch"])["length"].sum().max() <= 70


def test_many_ranks_fit_a_screen() -> None:
    lines = repr(balance(rollouts(4096, 0), 64)).splitlines()
    assert len(lines) == 18
    assert max(map(len, lines)) <= 100
    assert lines[-1] == "(48 ranks between these are not shown)"


def test_it_needs_no_torch() -> None:
    code = "import sys, ddpsched; ddpsched.balance([1, 2, 3], 2); sys.exit(bool({'torch', 'pandas'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("packed", [True, False])
def test_fewer_samples_than_ranks_in_lockstep(packed: bool) -> None:
    found = balance([7, 30], 4, lockstep=True, packed=packed, stand_ins=True, max_tokens=40)
    assert [len(rank) for rank in found.ranks] == [1] * 4
    assert (len(found.stand_ins), found.counts.sum(), found.makespan, found.gap) == (2, 2, 30, 0)
    assert sorted(found.sum_scale(rank=rank) for rank in range(4)) == [0, 0, 2, 2]
