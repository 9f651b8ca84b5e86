"""A makespan found once is found again: trying many plans makes none of them worse."""

import numpy as np
import pytest
from brute_force import TOKENS

from ddpsched.costs.cost_model import CostModel
from ddpsched.planning.solvers.partition.heterogeneous import uneven_split
from ddpsched.planning.solvers.partition.several import accumulate_split
from ddpsched.planning.solvers.partition.sorted_batch import line_of

Cost = CostModel
ALPHA = CostModel(7, 1, 0, scale=1)
SQUARES = CostModel(3, 1, 0.5, scale=1)
FLOORED = CostModel(2, 1, 0, scale=1, floor=60)
# lengths, ranks, M, cost, room of a micro-batch in tokens, the makespan
EQUAL: list[tuple[str, int, int, Cost, int | None, int]] = [
    ("52 44 59 33 41 32 21 59 52 7 49 52 56 32 50 60", 4, 6, TOKENS, 60, 175),
    (
        (
            "11 9 23 27 16 50 43 62 16 15 19 96 146 81 16 46 10 11 40 17 13 21 7 33 39 17 16 24 54 21 46 34 29 12"
            " 3 62 13 11 65 11 54 14 18 20 79 10 18 27"
        ),
        8,
        3,
        FLOORED,
        292,
        235,
    ),
    (
        "16 82 15 18 30 15 11 3 99 113 16 12 19 23 18 4 82 4 20 5 120 105 19 108 27 28 11 10 14 80 80 112",
        8,
        6,
        FLOORED,
        None,
        222,
    ),
    ("46 57 14 51 54 48 31 44 47 26 38 53 4 38 32 58", 3, 3, ALPHA, 116, 244),
]
# lengths, M, cost, room of each rank, slowness of each rank in millionths, the makespan
UNEVEN: list[tuple[str, int, Cost, list[int], list[int], int]] = [
    (
        (
            "72 51 91 21 8 18 27 22 33 8 71 21 13 16 47 21 4 22 86 22 15 5 5 15 10 8 45 114 22 24 68 94 15 11 11 "
            "7 93 6 24 36 2 14 8 21 28 9 36 7 18 61 35 23 33 19 34 21 45 22 55 9 29 12 33 38"
        ),
        8,
        SQUARES,
        [228, 228],
        [1976507, 1000000],
        39592,
    ),
    (
        (
            "16 23 65 32 35 40 26 12 140 10 8 27 43 8 13 3 28 14 11 10 7 9 43 13 38 9 14 4 8 31 3 7 65 21 6 35 12"
            " 20 10 61 8 27 27 28 22 15 9 11 19 7 7 3 8 18 28 20 56 30 19 7 3 5 26 14 56 7 13 6 11 5 9 10 51 8 13"
            " 65 5 55 21 40 11 30 8 13 34 45 48 5 24 15 13 9 10 14 68 18 7 16 11 2 9 62 12 33 4 15 59 22 26 71 15"
            " 22 21 10 17 18 11 15 13 10 11 18 10 10 43 42 2 9"
        ),
        6,
        ALPHA,
        [280, 140, 140, 140],
        [1664692, 1000000, 1817961, 1226481],
        1257,
    ),
]


@pytest.mark.parametrize("case", EQUAL, ids=lambda case: str(case[-1]))
def test_equal_ranks(case: tuple[str, int, int, Cost, int | None, int]) -> None:
    text, ranks, most, cost, room, once = case
    line = line_of(np.array(text.split(), dtype=int), cost, None if room is None else lambda longest: room // longest)
    assert accumulate_split(line, ranks, most).makespan <= once


@pytest.mark.parametrize("case", UNEVEN, ids=lambda case: str(case[-1]))
def test_unlike_ranks(case: tuple[str, int, Cost, list[int], list[int], int]) -> None:
    text, most, cost, rooms, slowness, once = case
    lengths = np.array(text.split(), dtype=int)
    line = line_of(lengths, cost, lambda longest: max(rooms) // longest)
    limits = [(room // lengths[line.order]).tolist() for room in rooms]
    assert uneven_split(line, slowness, most, limits).makespan <= once
