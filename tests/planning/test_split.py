"""Samples split over ranks: parts that are whole samples, no rank that waits for ever, plans near the bound."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ddpsched
from ddpsched.costs.cost_model import CostModel
from ddpsched.data.lengths import KnownLengths
from ddpsched.errors import InfeasibleError
from ddpsched.exchange import LocalExchange
from ddpsched.parts import Part, fault_of, finish_times, head_and_tail
from ddpsched.planning.plan_spec import PlanSpec
from ddpsched.planning.planner import plan_steps
from ddpsched.planning.policies.split import Split
from ddpsched.planning.solvers.partition.gangs import Row, Share, degrees, place
from ddpsched.planning.yardstick import GroupsRuler, SplitRuler
from ddpsched.step_plan import Microbatch, StepPlan

ATTENTION = CostModel(0, 1, 1 / 24576, scale=1000)  # tokens, and squared ones over 24,576


def plans(lengths: Any, world_size: int, batch: int, cost: CostModel = ATTENTION, **options: Any) -> list[StepPlan]:
    known = KnownLengths(np.asarray(lengths, dtype=np.int64))
    spec = PlanSpec(world_size=world_size, global_batch=batch, policy=Split(**options), epochs=1, cost=cost)
    return list(plan_steps(spec, known, LocalExchange(world_size)))


@given(st.integers(1, 400), st.integers(1, 40))
def test_parts_are_the_whole_sample_and_alike_to_a_token(length: int, count: int) -> None:
    count = min(count, length)
    parts = head_and_tail(length, count)
    assert fault_of(parts) is None
    tokens = [part.tokens for part in parts]
    assert sum(tokens) == length
    assert max(tokens) - min(tokens) <= 1
    pairs = [sum((end * (end + 1) - start * (start + 1)) // 2 for start, end in part.ranges) for part in parts]
    assert max(pairs) - min(pairs) <= 2 * length  # causal pairs: a token more in front or behind


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([Part(0, 2, ((0, 4),))], "its parts are numbered 0 of 2, needs 0 to 1 of 2"),
        ([Part(0, 2, ((0, 4),)), Part(1, 3, ((4, 8),))], "its parts are numbered 0 of 2, 1 of 3"),
        ([Part(1, 2, ((0, 4),)), Part(1, 2, ((4, 8),))], "its parts are numbered 1 of 2, 1 of 2"),
        ([Part(0, 2, ((0, 4),)), Part(1, 2, ((5, 8),))], "no part has its tokens 4 to 4"),
        ([Part(0, 2, ((0, 4),)), Part(1, 2, ((3, 8),))], "two parts have its token 3"),
        ([Part(0, 2, ((1, 4),)), Part(1, 2, ((4, 8),))], "no part has its tokens 0 to 0"),
        ([Part(0, 2, ((0, 4), (4, 4))), Part(1, 2, ((4, 8),))], "has the range 4 to 4, needs at least a token"),
        ([Part(0, 2, ((0, 4),)), Part(1, 2, ())], "its part 1 has no token"),
        ([Part(0, 2, ((4, 8),)), Part(1, 2, ((0, 4),))], "its part 0 lacks its first token"),
    ],
)
def test_what_is_no_whole_sample_is_refused(parts: list[Part], said: str) -> None:
    with pytest.raises(ValueError, match=f"step 3: sample 5 is split, and .*{said}"):
        StepPlan(0, 3, tuple((Microbatch([5], packed=True, part=part),) for part in parts))


def test_a_rank_has_one_part_of_a_sample_and_a_part_one_sample() -> None:
    first, second = (Microbatch([5], packed=True, part=part) for part in head_and_tail(8, 2))
    with pytest.raises(ValueError, match=r"sample 5 is split over ranks \[0, 0\]; each needs one part"):
        StepPlan(0, 0, ((first, second), ()))
    with pytest.raises(ValueError, match="a part is of one sample, got 2 ids"):
        Microbatch([5, 6], packed=True, part=first.part)


def test_ranks_that_would_wait_for_each_other_for_ever_are_refused() -> None:
    one, two = ([Microbatch([id], packed=True, part=part) for part in head_and_tail(8, 2)] for id in (1, 2))
    StepPlan(0, 0, ((one[0], two[0]), (one[1], two[1])))
    with pytest.raises(ValueError, match=r"ranks \[0, 1\] wait for each other at samples \[1, 2\]"):
        StepPlan(0, 0, ((one[0], two[0]), (two[1], one[1])))
    three = [Microbatch([3], packed=True, part=part) for part in head_and_tail(8, 2)]
    with pytest.raises(ValueError, match=r"ranks \[0, 1, 2\] wait for each other"):  # in a ring
        StepPlan(0, 0, ((one[0], three[1]), (two[0], one[1]), (three[0], two[1])))


def test_a_split_sample_counts_once_and_plans_without_one_keep_their_digest() -> None:
    parts = [Microbatch([7], packed=True, part=part) for part in head_and_tail(9, 3)]
    plan = StepPlan(0, 0, ((parts[0],), (parts[1], Microbatch([2], packed=True)), (parts[2],)))
    assert (plan.global_batch, plan.counts.tolist(), plan.ids.tolist()) == (2, [1, 1, 0], [7, 2])
    assert [plan.rank_ids(rank).tolist() for rank in range(3)] == [[7], [2], []]
    other = StepPlan(0, 0, ((parts[0],), (Microbatch([2], packed=True), parts[1]), (parts[2],)))
    assert plan.digest != other.digest
    whole = StepPlan(0, 0, ((Microbatch([7, 2], packed=True),), (), ()))
    assert whole.digest not in (plan.digest, other.digest)
    assert StepPlan(0, 0, ((Microbatch([3, 1]),), (Microbatch([2]),))).digest_hex == "60908d19a077505f"


lengths_of = st.lists(st.one_of(st.integers(1, 30), st.integers(100, 900)), min_size=4, max_size=40)


@settings(max_examples=300)
@given(lengths_of, st.integers(1, 9), st.sampled_from([None, 60, 300]))
def test_every_plan_covers_its_samples_and_ends(lengths: list[int], world_size: int, cap: int | None) -> None:
    """StepPlan refuses parts that are no sample, and an order in which ranks wait for ever."""
    world_size = min(world_size, len(lengths))
    if cap is not None and max(lengths) > cap * world_size:
        with pytest.raises(
            InfeasibleError, match=rf"over policy.max_tokens = {cap} on all {world_size} ranks together"
        ):
            plans(lengths, world_size, len(lengths), max_tokens=cap)
        return
    (plan,) = plans(lengths, world_size, len(lengths), max_tokens=cap)
    assert sorted(plan.ids.tolist()) == list(range(len(lengths)))
    assert min(plan.counts) >= 0
    for id, parts in plan.parts.items():
        assert max(part.ranges[-1][1] for _, part in parts) == lengths[id]
    for micro in (micro for rank in plan.ranks for micro in rank):
        tokens = micro.part.tokens if micro.part else sum(lengths[id] for id in micro.ids)
        assert cap is None or tokens <= cap
    ruler = SplitRuler(np.array(lengths), world_size, ATTENTION, packed=True)
    ruler.add_epoch([plan.ranks])
    assert ruler.read().yardstick == pytest.approx(
        max(plan.predicted_cost or ()) * world_size / ATTENTION.sample(lengths).sum()
    )
    assert (plan.lower_bound or 0) <= max(plan.predicted_cost or ())


@pytest.mark.parametrize(
    ("law", "cut", "world_size", "batch", "cap", "most", "share"),
    [
        ("encyclopedia", 65536, 8, 64, 8192, 1.015, 0.025),
        ("encyclopedia", 65536, 8, 64, 16384, 1.015, 0.025),
        ("encyclopedia", 65536, 64, 512, 8192, 1.005, 0.025),
        ("encyclopedia", 65536, 64, 512, 16384, 1.005, 0.025),
        ("chat", 126000, 8, 64, 16384, 1.05, 0.26),
    ],
)
def test_plans_of_long_tails_are_near_an_even_share(
    law: str, cut: int, world_size: int, batch: int, cap: int, most: float, share: float
) -> None:
    lengths = np.minimum(ddpsched.law_lengths(law, 60 * batch if world_size == 8 else 12 * batch, seed=1), cut)
    made = plans(lengths, world_size, batch, max_tokens=cap)
    ruler = SplitRuler(lengths, world_size, ATTENTION, packed=True)
    ruler.add_epoch([plan.ranks for plan in made])
    figures = ruler.read()
    assert figures.yardstick <= most
    assert figures.split is not None
    assert figures.split <= share
    groups = {tuple(rank for rank, _ in parts) for plan in made for parts in plan.parts.values()}
    assert all(ranks == tuple(range(ranks[0], ranks[-1] + 1)) for ranks in groups), "neighbours"
    assert len(groups) <= 64


def test_a_step_of_groups_costs_the_sum_of_their_last_ranks() -> None:
    """Two groups with a barrier between: 9 + 6 though no rank works longer than 11; without it the step ends at 12."""
    cost = CostModel(1, 1, 0, scale=1, gather_beta=1)
    lengths = np.array([3, 4, 8, 2, 1])
    front, back = (Microbatch([2], packed=True, part=part) for part in head_and_tail(8, 2))
    whole = {id: Microbatch([id], packed=True) for id in (0, 1, 3, 4)}
    groups = [[[whole[0], front], [back]], [[whole[3]], [whole[1], whole[4]]]]
    ruler = GroupsRuler(lengths, 2, cost, packed=True, time=cost)
    ruler.add_epoch([groups, [groups[0]]])
    figures = ruler.read()
    first, second = 4 + 5, 5 + 2
    assert figures.yardstick == (2 * first + second) / ((lengths.sum() + 11) / 2)
    assert figures.imbalance == (2 * first + second) / ((2 * (4 + 5 + 5) + 3 + 5 + 2) / 2)
    assert figures.step_seconds == pytest.approx((2 * first + second) / 2 / 1e9)
    assert figures.split == 2 / 7
    assert figures.gathered == pytest.approx(2 * 4 / ((lengths.sum() + 11) / 2))
    assert (figures.dropped, figures.repeated, figures.steps, figures.microbatches) == (0, 2, 2, 9 / 4)
    alone = SplitRuler(lengths, 2, cost, packed=True)
    alone.add_epoch([[[*groups[0][0], *groups[1][0]], [*groups[0][1], *groups[1][1]]]])
    assert alone.read().yardstick == 16 / (lengths.sum() / 2)


@settings(max_examples=60)
@given(st.lists(st.integers(1, 60), min_size=2, max_size=6), st.integers(2, 3), st.integers(0, 5))
def test_no_order_of_the_same_parts_is_much_better(lengths: list[int], world_size: int, fixed: int) -> None:
    """Brute force: every placement of the same parts and whole samples, in every order, with one sample a row.

    Longest processing time first is within 4/3 of the best of whole samples, and gangs come at a fixed cost of their
    own; the mean is much nearer.
    """
    tokens = np.array(lengths)
    degree = degrees(tokens, tokens, world_size, None)
    ranks = place(tokens, tokens, degree, world_size, None, fixed)
    priced = [[_priced(item, lengths, fixed) for item in rank] for rank in ranks]
    found, best = max(finish_times(priced)), _best(lengths, degree.tolist(), world_size, fixed)
    assert best <= found + 5 * fixed
    assert found <= 4 / 3 * best + fixed


def _priced(item: Row | Share, lengths: list[int], fixed: int) -> tuple[int, int | None]:
    if isinstance(item, Row):
        return fixed + sum(lengths[each] for each in item.members), None
    return fixed - (-lengths[item.position] // item.degree), item.position


def _best(lengths: list[int], degree: list[int], world_size: int, fixed: int) -> int:
    """Return the least makespan where samples are placed one after another, in any order and on any ranks."""
    best = 10**9
    samples = range(len(lengths))
    split = [id for id in samples if degree[id] > 1]
    whole = [id for id in samples if degree[id] == 1]
    for order in itertools.permutations(split):
        for groups in itertools.product(*(list(itertools.combinations(range(world_size), degree[id])) for id in order)):
            loads = [0] * world_size
            for id, group in zip(order, groups, strict=True):
                end = max(loads[rank] for rank in group) + fixed - (-lengths[id] // degree[id])
                for rank in group:
                    loads[rank] = end
            for ranks in itertools.product(range(world_size), repeat=len(whole)):
                ends = list(loads)
                for id, rank in zip(whole, ranks, strict=True):
                    ends[rank] += lengths[id]
                opened = {rank for rank in ranks}
                best = min(best, max(end + fixed * (rank in opened) for rank, end in enumerate(ends)))
    return best


def test_a_message_board_of_random_plans_never_stops() -> None:
    """10,000 plans, each executed in a random interleaving of its ranks."""
    generator = np.random.default_rng(0)
    for _ in range(10_000):
        world_size = int(generator.integers(2, 9))
        lengths = np.where(generator.random(10) < 0.4, generator.integers(50, 400, 10), generator.integers(1, 30, 10))
        degree = np.minimum(degrees(lengths, lengths, world_size, int(generator.integers(60, 200))), lengths)
        ranks = place(lengths, lengths, degree, world_size, None)
        _execute([[item.position if isinstance(item, Share) else None for item in rank] for rank in ranks], generator)


def _execute(ranks: list[list[int | None]], generator: np.random.Generator) -> None:
    """Let ranks post their arrival at split samples, in a random order, and go on when all are there."""
    needed = {id: sum(rank.count(id) for rank in ranks) for rank in ranks for id in rank if id is not None}
    places, arrived = [0] * len(ranks), dict[int, set[int]]()
    while any(place < len(rank) for place, rank in zip(places, ranks, strict=True)):
        before = list(places), sum(map(len, arrived.values()))
        for rank in generator.permutation(len(ranks)).tolist():
            if places[rank] == len(ranks[rank]):
                continue
            id = ranks[rank][places[rank]]
            if id is not None:
                arrived.setdefault(id, set()).add(rank)
            if id is None or len(arrived[id]) == needed[id]:
                places[rank] += 1
        assert (list(places), sum(map(len, arrived.values()))) != before, f"all ranks wait: {ranks}"
