"""The best deal in runs of neighbours is a bound that small cases show."""

import numpy as np
import pytest

from ddpsched.planning.steps.lookahead import window_bound
from experiments.benchmarks.lookahead import above_the_bound, free_runs


@pytest.mark.parametrize(
    ("weights", "steps", "heights", "expected"),
    [
        ([5, 5, 1, 1], 2, [], 6),  # the long ones share a step
        ([9, 8, 1, 1], 2, [], 10),  # 8 and 1 in a padded row would be 16
        ([4, 2, 2, 2, 2], 1, [8], 8),  # 4, 2 padded, and three of 2
    ],
)
def test_small_cases(weights: list[int], steps: int, heights: list[int], expected: int) -> None:
    assert free_runs(weights, steps, 2, heights) == expected


def test_it_is_no_less_than_the_bound() -> None:
    lengths = np.exp(np.random.default_rng(1).normal(4.0, 1.0, 64)).astype(np.int64) + 3
    assert min(above_the_bound(lengths, steps=4, ranks=2, size=8, windows=2)) >= 0
    assert window_bound(np.array([9, 1, 1, 8]), 2, 2) == free_runs([9, 8, 1, 1], 2, 2, [])
