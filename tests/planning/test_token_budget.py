"""The policy token_budget: runs of the order against counting up, both budgets, the shared shape, an example."""

from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpsched.config import parse
from ddpsched.costs.memory_cap import Cap, probed
from ddpsched.data.lengths import KnownLengths
from ddpsched.errors import ConfigError, InfeasibleError
from ddpsched.exchange import LocalExchange
from ddpsched.planning.assignment import Assignment
from ddpsched.planning.planner import plan_steps
from ddpsched.planning.policies.filling import Supply
from ddpsched.planning.policies.token_budget import TokenBudget


def filled(lengths: Any, tokens: Any, world_size: int = 1, caps: Any = None, **values: Any) -> list[Assignment]:
    given = np.array(lengths, dtype=np.int64)
    parts, sums = (given, given.sum(axis=1)) if given.ndim == 2 else (None, given)
    policy = TokenBudget(max_tokens_for_batch=tokens, **values)
    return list(policy.fill(Supply(sums, world_size, parts=parts, caps=caps)))


def batches(step: Assignment) -> list[list[list[int]]]:
    """Return positions as ``[rank][micro-batch]``."""
    positions = iter(step.positions.tolist())
    return [[list(islice(positions, size)) for size in share] for share in step.sizes]


def in_turn(steps: list[Assignment]) -> list[list[int]]:
    """Return micro-batches in the order of dealing: the first of every rank, then the second, ..."""
    result = []
    for step in steps:
        ranks = batches(step)
        most = max(map(len, ranks))
        result += [rank[k] for k in range(most) for rank in ranks if k < len(rank)]
    return result


def counting_up(lengths: list[list[int]], budgets: list[int], padded: bool) -> list[list[int]]:
    """Return micro-batches to which samples are added while every column's size stays within its budget."""
    result: list[list[int]] = []
    for sample in range(len(lengths)):
        grown = [*result[-1], sample] if result else [sample]
        sizes = [
            len(grown) * max(lengths[p][c] for p in grown) if padded else sum(lengths[p][c] for p in grown)
            for c in range(len(budgets))
        ]
        if result and all(size <= budget for size, budget in zip(sizes, budgets, strict=True)):
            result[-1].append(sample)
        else:
            result.append([sample])
    return result


@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(0, 20)).map(list), min_size=1, max_size=60),
    st.booleans(),
    st.sampled_from(["padded", "real"]),
    st.integers(20, 60),
    st.integers(20, 60),
    st.integers(1, 3),
    st.integers(1, 3),
)
def test_runs_of_the_order_as_counted_up(
    lengths: list[list[int]], two: bool, budget: str, first: int, second: int, ranks: int, accumulation: int
) -> None:
    rows = lengths if two else [row[:1] for row in lengths]
    budgets = [first, second] if two else [first]
    given = rows if two else [row[0] for row in rows]
    steps = filled(given, budgets if two else first, ranks, budget=budget, batches_per_optimizer_step=accumulation)
    assert in_turn(steps) == counting_up(rows, budgets, budget == "padded")
    per_step = [sum(map(len, step.sizes)) for step in steps]
    assert all(count == ranks * accumulation for count in per_step[:-1])
    assert all(abs(len(a) - len(b)) <= 1 for step in steps for a in step.sizes for b in step.sizes)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=80), st.integers(20, 90), st.integers(1, 3), st.integers(1, 3))
def test_one_shape_in_a_step(lengths: list[int], budget: int, ranks: int, accumulation: int) -> None:
    steps = filled(lengths, budget, ranks, same_shape=True, batches_per_optimizer_step=accumulation)
    assert [p for micro in in_turn(steps) for p in micro] == list(range(len(lengths))), "nothing dropped or out of turn"
    width = ranks * accumulation
    for step in steps:
        (size,) = {size for share in step.sizes for size in share}
        number = sum(map(len, step.sizes))
        start, left = step.cursor - size * number, len(lengths) - step.cursor + size * number
        assert step.pad_to == max(lengths[start : step.cursor])
        assert size * step.pad_to <= budget or size == 1
        assert number == min(width, left)
        if (size + 1) * width <= left:  # one more sample each would exceed the budget
            assert (size + 1) * max(lengths[start : start + (size + 1) * width]) > budget


def test_two_ranks_and_two_accumulation_steps() -> None:
    """The example in report/notes/token_budget.md: 10 short, then 6 longer samples, budget 30."""
    lengths = [2, 3, 3, 2, 3, 3, 2, 3, 3, 3, 7, 7, 6, 7, 5, 7]
    (plain,) = filled(lengths, 30, 2, batches_per_optimizer_step=2)
    assert batches(plain) == [[[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [14, 15]], [[10, 11, 12, 13]]]
    shaped = filled(lengths, 30, 2, batches_per_optimizer_step=2, same_shape=True)
    assert [(step.sizes, step.pad_to) for step in shaped] == [(((4, 4), (4, 4)), 7)]


def test_the_worked_example() -> None:
    """Budget 30 takes ten samples of 3 tokens, then four of 7. The tests of lr check the resulting rates."""
    steps = filled([3] * 10 + [7] * 4, 30)
    assert [len(step.positions) for step in steps] == [10, 4]


def test_a_sample_over_the_budget_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"max_tokens_for_batch = 30, but 2 of 3 samples are longer, up to 40"):
        filled([31, 5, 40], 30)
    with pytest.raises(ConfigError, match=r"max_tokens_for_batch = 9, but 1 of 2 samples are longer, up to 10"):
        filled([[3, 5], [3, 10]], [30, 9])
    two = {"kind": "token_budget", "max_tokens_for_batch": [30, 30]}
    config = parse({"epochs": 1, "data": {"prompt": "question"}, "model": {"task": "causal_lm"}, "policy": two})
    plans = plan_steps(config.plan_spec(), KnownLengths([3, 4]), LocalExchange(4))
    with pytest.raises(ConfigError, match="lengths are of the whole"):
        next(plans)


def test_memory_is_never_outgrown() -> None:
    lengths = [9, 3, 3, 3, 3, 3, 3, 3]
    steps = filled(lengths, 1000, caps=(probed(3, 10), probed(5, 10)))
    assert [len(micro) for micro in in_turn(steps)] == [3, 3, 2]
    for values in ({"budget": "real"}, {"same_shape": True}):
        assert max(len(micro) for micro in in_turn(filled(lengths, 1000, caps=(probed(3, 10),), **values))) == 3
    with pytest.raises(InfeasibleError, match="one sample of 9 tokens alone"):
        filled(lengths, 1000, caps=(Cap(8, lambda length: length),))
