"""The cost of micro-batches that are filled up to a menu of shapes, against a search of all shapes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpsched.costs.cost_model import CostModel, padded_tokens
from ddpsched.costs.shape_menu import NOWHERE, on_menu
from ddpsched.errors import InfeasibleError

SHAPES = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 30)), min_size=1, max_size=8, unique=True)
MODELS = (
    padded_tokens,
    CostModel(1e-3, 1e-5, 1e-7),
    CostModel(1e-3, 1e-5, 0, floor=2e-3),
    CostModel(0, 1, 0.5, scale=1),
)


@given(SHAPES, st.sampled_from(MODELS), st.integers(1, 14), st.integers(1, 32))
def test_the_cheapest_shape_that_holds_it(
    shapes: list[tuple[int, int]], model: CostModel, count: int, longest: int
) -> None:
    cost = on_menu(model, shapes)
    holding = [shape for shape in shapes if shape[0] >= count and shape[1] >= longest]
    if not holding:
        assert int(cost.padded(count, longest)) == NOWHERE
        with pytest.raises(InfeasibleError, match=r"fits? into none of the"):
            cost.shape(count, longest)
        return
    least = min(int(model.padded(*shape)) for shape in holding)
    assert int(cost.padded(count, longest)) == least
    rows, length = cost.shape(count, longest)
    assert (rows, length) in holding
    assert int(model.padded(rows, length)) == least
    assert int(cost.computed(count, longest)) == rows * length


@given(SHAPES, st.sampled_from(MODELS))
def test_it_falls_neither_with_count_nor_with_length(shapes: list[tuple[int, int]], model: CostModel) -> None:
    table = on_menu(model, shapes).padded(np.arange(14)[:, None], np.arange(1, 33))
    assert (np.diff(table, axis=0) >= 0).all()
    assert (np.diff(table, axis=1) >= 0).all()
    assert (table[0] == 0).all()


def test_what_a_model_of_it_costs_without_padding_is_the_samples_own() -> None:
    cost = on_menu(padded_tokens, [(4, 10)])
    assert cost.unpadded(np.array([3, 9])).tolist() == [3, 9]
    assert cost.rounded(np.array([3, 10])).tolist() == [10, 10]
    assert not cost.linear
    assert cost.price_microbatches(np.array([3, 9, 1]), [[2], [1]]) == [[40], [40]]


def test_a_sample_outside_the_menu_is_named() -> None:
    cost = on_menu(padded_tokens, [(4, 10), (1, 20)])
    with pytest.raises(
        InfeasibleError, match=r"a sample of 21 tokens fits into .* of up to 4 rows and 20 tokens; .*compile\.menu"
    ):
        cost.rounded(np.array([3, 21]))
    with pytest.raises(InfeasibleError, match="2 samples, the longest of 12 tokens, fit into none of the 2 shapes"):
        cost.price_ranks(np.array([3, 5, 12]), [[1], [2]])
