"""Rows of at most so many tokens, as packing trainers fill them, and their way to ranks."""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

import numpy as np

from ddpsched.peers.peer import Problem, Step, dealt
from ddpsched.step_plan import Ids

Rows = list[list[int]]  # positions


def row_tokens(problem: Problem) -> int:
    """Return the tokens of a row that trainers with a cap would set: M rows of a rank hold its share of a batch.

    A tenth more, as rows are not full; and the longest sample fits.
    """
    share = problem.global_batch * float(problem.lengths.mean()) / problem.world_size
    return max(problem.longest, round(1.1 * share / problem.max_microbatches))


def next_fit(lengths: Sequence[int], tokens: int) -> Rows:
    """Return rows filled in order; a sample that does not fit begins the next one.

    >>> next_fit([5, 4, 3, 2], 9)
    [[0, 1], [2, 3]]
    """
    rows, room = Rows(), 0
    for position, length in enumerate(lengths):
        if length > room or not rows:
            rows.append([])
            room = tokens
        rows[-1].append(position)
        room -= length
    return rows


def first_fit_decreasing(lengths: Sequence[int], tokens: int, most: int | None = None) -> Rows:
    """Return rows: longest first, each sample into the first row with room for it, of fewer than ``most`` samples.

    >>> first_fit_decreasing([5, 4, 3, 2], 8)
    [[0, 2], [1, 3]]
    """
    rows, rooms = Rows(), list[int]()
    for position in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        need = lengths[position]
        open_rows = (row for row, room in enumerate(rooms) if room >= need and (most is None or len(rows[row]) < most))
        row = next(open_rows, len(rows))
        if row == len(rows):
            rows.append([])
            rooms.append(tokens)
        rows[row].append(position)
        rooms[row] -= need
    return rows


def knapsacks(lengths: Sequence[int], tokens: int) -> Rows:
    """Return rows filled one after another: each takes the longest sample left that fits, again and again.

    >>> knapsacks([5, 4, 3, 2], 8)
    [[0, 2], [1, 3]]
    """
    left = sorted((length, -position) for position, length in enumerate(lengths))
    rows = Rows()
    while left:
        row, room = [], tokens
        while (place := bisect_left(left, (room + 1, -len(lengths))) - 1) >= 0:
            length, position = left.pop(place)
            row.append(-position)
            room -= length
        rows.append(row)
    return rows


def modified_first_fit_decreasing(lengths: Sequence[int], tokens: int) -> Rows:
    """Return rows by the rule of Johnson and Garey (1985), "A 71/60 theorem for bin packing".

    Samples above half a row begin one each. The largest that fits of those above a third joins each. From the last row
    to the first, those without one take two above a sixth, if the two shortest fit: the shortest, and the longest that
    fits with it. Then each row takes the longest that still fits, again and again. What is left is packed longest first
    into the emptiest row.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])  # the longest first, equal ones in order
    large = [i for i in order if lengths[i] > tokens / 2]
    medium = [i for i in order if tokens / 3 < lengths[i] <= tokens / 2]
    small = sorted((i for i in order if tokens / 6 < lengths[i] <= tokens / 3), key=lambda i: lengths[i])
    tiny = [i for i in order if lengths[i] <= tokens / 6]
    rows, rooms, thirds = [[i] for i in large], [tokens - lengths[i] for i in large], set[int]()

    def put(row: int, position: int) -> None:
        rows[row].append(position)
        rooms[row] -= lengths[position]

    for row in range(len(rows)):
        place = next((place for place, i in enumerate(medium) if lengths[i] <= rooms[row]), None)
        if place is not None:
            put(row, medium.pop(place))
            thirds.add(row)
    for row in reversed(range(len(rows))):
        if row in thirds or len(small) < 2 or lengths[small[0]] + lengths[small[1]] > rooms[row]:
            continue
        put(row, small.pop(0))
        put(row, small.pop(max(place for place, i in enumerate(small) if lengths[i] <= rooms[row])))
    rest = sorted(medium + small + tiny, key=lambda i: -lengths[i])
    for row in range(len(rows)):
        while (place := next((place for place, i in enumerate(rest) if lengths[i] <= rooms[row]), None)) is not None:
            put(row, rest.pop(place))
    emptiest: list[tuple[int, int]] = []  # loads, rising, and rows
    for position in rest:
        if emptiest and emptiest[0][0] + lengths[position] <= tokens:
            load, row = emptiest.pop(0)
        else:
            load, row = 0, len(rows)
            rows.append([])
        rows[row].append(position)
        insort(emptiest, (load + lengths[position], row))
    return rows


def of_even_number(rows: Rows, ranks: int) -> Rows:
    """Return as many rows for each rank: of those with most samples, one begins a row of its own, as long as needed."""
    rows = [list(row) for row in rows]
    while len(rows) % ranks and (most := max(rows, key=len)) and len(most) > 1:
        rows.append([most.pop()])
    return rows


def dealt_rows(problem: Problem, start: int, rows: Rows) -> Step:
    """Return a step whose rank r runs rows r, r + G, ...; ``start``: of the batch in the order."""
    return [
        [problem.ids([start + position for position in row]) for row in rows[rank :: problem.world_size]]
        for rank in range(problem.world_size)
    ]


def shuffled_rows(problem: Problem, rows: Sequence[Ids]) -> Iterator[Step]:
    """Yield one of these rows, as ids, for each rank and step, in the random order of the epoch."""
    turns = np.random.default_rng([problem.seed, problem.epoch]).permutation(len(rows)).tolist()
    return dealt([[rows[turn] for turn in turns[rank :: problem.world_size]] for rank in range(problem.world_size)])
