"""A menu of rows and lengths together: a search for the shapes on which trial steps cost least.

Which lengths pad least is known exactly where the rows are given (``length_menu``); where plans choose the rows, too,
as ``balanced`` and ``minmax`` do, no exact method is known for more than a handful of shapes. This is a heuristic:

* the start is the best of some grids, with the lengths at even shares of the samples, and rows so that all shapes cost
  about the same: one, or one and half, of a few parts of what the slowest rank of a step pays;
* then one shape after another is moved at random (its length, its rows, both at the same number of tokens, or to a new
  place), and a move stays where the trial steps do not cost more.

One shape is given: what a rank needs at worst. Random numbers are of a fixed seed and the number of tries follows from
the size of the steps, so all ranks find the same menu.
"""

import numpy as np

from ddpsched.costs.shape_menu import Shape
from ddpsched.planning.shapes.trial_steps import TrialSteps

OPERATIONS = 10**9  # some seconds
FEWEST, MOST = 60, 12_000  # menus that are judged
PARTS = (0.15, 0.25, 0.35, 0.5, 0.7, 0.9, 1.1)  # of what the slowest rank pays


def search_shapes(steps: TrialSteps, most: int, at_worst: Shape) -> list[Shape]:
    """Return at most ``most`` shapes, rising by length, on which the steps cost least, of those tried.

    ``at_worst``: a shape that stays in the menu, and that holds whatever no other does.
    """
    if most == 1:
        return [at_worst]
    tries = int(np.clip(OPERATIONS // steps.work, FEWEST, MOST))
    judged: dict[frozenset[Shape], float] = {}  # most moves lead back to a menu that was judged before

    def judge(menu: list[Shape]) -> float:
        known = frozenset(menu)
        if known not in judged:
            judged[known] = steps.judge(menu)
        return judged[known]

    best, least = [at_worst], judge([at_worst])
    for grid in _grids(steps, most, at_worst):
        price = judge(grid)
        tries -= 1
        if price < least:
            best, least = grid, price
    random, samples = np.random.default_rng(0), steps.lengths
    for _ in range(max(0, tries)):
        moved = _moved(best, random, samples, most, at_worst)
        if moved is None:
            continue
        price = judge(moved)
        if price <= least:
            best, least = moved, price
    return sorted(set(best), key=lambda shape: (shape[1], shape[0]))


def _grids(steps: TrialSteps, most: int, at_worst: Shape) -> list[list[Shape]]:
    """Return the menus that the search may start from."""
    typical, grids = steps.typical(), []
    for halves in (1, 2):
        number = (most - 1) // halves
        if not number:
            continue
        lengths = np.unique(np.quantile(steps.lengths, np.arange(1, number + 1) / number).astype(np.int64)).tolist()
        for part in PARTS:
            shapes = {at_worst}
            for length in lengths:
                each = int(steps.cost.padded(1, length))
                rows = max(1, min(at_worst[0] * at_worst[1], int(typical * part)) // max(1, each))
                shapes |= {(rows, length), (max(1, rows // halves), length)}
            grids.append(list(shapes)[:most] if at_worst in list(shapes)[:most] else [at_worst, *shapes][:most])
    return grids


def _moved(
    shapes: list[Shape], random: np.random.Generator, samples: np.ndarray, most: int, at_worst: Shape
) -> list[Shape] | None:
    """Return the menu with one shape moved, or one more; None where the move leads nowhere."""
    others = [shape for shape in shapes if shape != at_worst]
    longest, kind = at_worst[1], random.random()
    if not others or (len(shapes) < most and kind < 0.2):
        place, (rows, length) = len(others), at_worst
        others.append(at_worst)
        kind = 1.0
    else:
        place = int(random.integers(len(others)))
        rows, length = others[place]
    if kind < 0.35:
        length += int(random.integers(1, max(2, length // 8) + 1)) * int(random.choice((-1, 1)))
    elif kind < 0.6:
        rows += int(random.integers(1, max(2, rows // 8) + 1)) * int(random.choice((-1, 1)))
    elif kind < 0.8:
        tokens = rows * length
        length = int(length * random.uniform(0.7, 1.4))
        rows = round(tokens / max(1, length))
    else:
        rows, length = others[int(random.integers(len(others)))]
        tokens, length = rows * length, int(random.choice(samples))
        rows = round(tokens * random.uniform(0.7, 1.4) / length)
    if not (1 <= length <= longest and rows >= 1) or (rows, length) in shapes:
        return None
    others[place] = (rows, length)
    return [at_worst, *others]
