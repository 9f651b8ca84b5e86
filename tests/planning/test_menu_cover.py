"""Several micro-batches a rank on a menu of shapes: valid, bounded, and near what trying everything finds."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpsched.costs.cost_model import CostModel, padded_tokens
from ddpsched.costs.shape_menu import MenuCost, on_menu
from ddpsched.errors import InfeasibleError
from ddpsched.planning.solvers.partition.menu_cover import menu_split

SHAPES = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 20)), min_size=0, max_size=5)
LENGTHS = st.lists(st.integers(1, 20), min_size=1, max_size=6)
MODELS = st.sampled_from([padded_tokens, CostModel(7, 1, 0, scale=1)])


def optimum(lengths: list[int], cost: MenuCost, ranks: int, most: int) -> int:
    """Return the least makespan of all placements."""
    best = 2**62
    places = ranks * most
    price = cost.padded(np.arange(len(lengths) + 1)[:, None], np.arange(max(lengths) + 1)).tolist()
    for chosen in itertools.product(range(places), repeat=len(lengths) - 1):
        loads = [0] * ranks
        chosen = (0, *chosen)  # places are alike, so the first sample may lie in the first one
        for place in set(chosen):
            part = [length for length, where in zip(lengths, chosen, strict=True) if where == place]
            loads[place // most] += price[len(part)][max(part)]
        best = min(best, max(loads))
    return best


@settings(max_examples=60, deadline=None)
@given(LENGTHS, SHAPES, MODELS, st.integers(1, 2), st.integers(1, 2))
def test_a_placement_is_valid_and_its_bound_holds(
    lengths: list[int], shapes: list[tuple[int, int]], model: CostModel, ranks: int, most: int
) -> None:
    cost = on_menu(model, {*shapes, (-(-len(lengths) // (ranks * most)), 20)})
    found = menu_split(np.array(lengths), cost, ranks, most)
    assert sorted(found.positions.tolist()) == list(range(len(lengths)))
    assert len(found.sizes) == ranks
    assert max(map(len, found.sizes)) <= most
    priced = cost.price_ranks(np.array(lengths)[found.positions], found.sizes)
    assert found.costs == priced
    least = optimum(lengths, cost, ranks, most)
    assert found.lower_bound is not None
    assert found.lower_bound <= least <= found.makespan
    if most == 1:
        assert found.makespan == least


def test_it_is_near_the_optimum_on_small_batches() -> None:
    random, ratios = np.random.default_rng(0), []
    for _ in range(40):
        lengths = random.integers(1, 20, 6).tolist()
        shapes = {(int(random.integers(1, 5)), int(random.integers(3, 20))) for _ in range(4)} | {(2, 20)}
        cost = on_menu(padded_tokens, shapes)
        ratios.append(menu_split(np.array(lengths), cost, 2, 2).makespan / optimum(lengths, cost, 2, 2))
    assert np.mean(ratios) < 1.03
    assert max(ratios) < 1.5


def test_a_larger_m_uses_small_shapes() -> None:
    lengths = np.random.default_rng(0).integers(3, 40, 64)
    cost = on_menu(padded_tokens, [(1, 40), (2, 30), (4, 20), (4, 10), (16, 40)])
    makespans = [menu_split(lengths, cost, 4, most).makespan for most in (1, 2, 4, 8, 16)]
    assert makespans == [640, 640, 640, 640, 440]


def test_a_sample_longer_than_the_menu_is_refused() -> None:
    with pytest.raises(InfeasibleError, match="a sample of 30 tokens"):
        menu_split(np.array([3, 30]), on_menu(padded_tokens, [(4, 20)]), 2, 2)
