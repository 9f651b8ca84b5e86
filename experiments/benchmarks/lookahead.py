"""Yardstick, order bias and gap by lookahead, for lengths with a long tail, as Markdown.

    python -m experiments.benchmarks.lookahead

40,000 lengths from a log-normal law (median 55, sigma 1.5, cut at 20,000 tokens), on 8 ranks with 64 samples a step:
in most batches one sample is longer than a rank's share, and no assignment within the batch can be faster than it. The
gap is to what W steps take at least, however their samples are dealt to them. That bound pads nothing: the last line
says how far above it the best deal of one padded micro-batch a rank is, where steps may have any number of samples.
"""

from collections.abc import Sequence

import numpy as np

from ddpsched.compare import Question, compare
from ddpsched.costs.cost_model import Int
from ddpsched.planning.steps.lookahead import window_bound

AHEAD = (1, 2, 4, 8, 32)
ARMS = (("balanced", 1), ("balanced", 4), ("packed", 1))


def long_tail(size: int = 40_000) -> Int:
    """Return ``size`` lengths from the log-normal law, (size,), int64, in tokens."""
    lengths = np.exp(np.random.default_rng(0).normal(4.0, 1.5, size))
    return np.minimum(lengths.astype(np.int64) + 3, 20_000)


def free_runs(weights: Sequence[int], steps: int, ranks: int, heights: Sequence[int]) -> int:
    """Return what the longest ranks of all steps together take at best, whose ranks have runs of neighbours by length.

    ``weights``: (N,), falling. A step of height T gives each rank in turn as many of the next samples as fit; T is its
    first sample's weight, or one of ``heights``. The counts of steps are free, so this is no plan, but no deal in runs
    with B samples a step is much better: by dynamic programming over (steps left, samples dealt).
    """
    count = len(weights)
    after: list[list[tuple[int, int]]] = []
    for start in range(count):
        ways = list[tuple[int, int]]()
        for height in {weights[start], *(each for each in heights if each >= weights[start])}:
            end = start
            for _ in range(ranks):
                end = min(count, end + height // weights[end]) if end < count else end
            ways.append((end, height))
        after.append(ways)
    best = [0.0 if start == count else np.inf for start in range(count + 1)]
    for _ in range(steps):
        best = [min(height + best[end] for end, height in ways) for ways in after] + [0.0]
    return int(best[0])


def above_the_bound(lengths: Int, steps: int, ranks: int, size: int, windows: int) -> list[float]:
    """Return for some windows of a shuffled epoch the best deal in runs over the window's bound, less 1."""
    order, found = np.random.default_rng(0).permutation(len(lengths)), list[float]()
    for window in np.split(order[: windows * steps * size], windows):
        falling = np.sort(lengths[window])[::-1]
        bound = window_bound(falling, size, ranks)
        heights = [int(bound / steps * share) for share in np.linspace(0.3, 4, 60)]
        found.append(free_runs(falling.tolist(), steps, ranks, heights) / bound - 1)
    return found


def main() -> None:
    """Print the yardstick by arm and lookahead, with the order bias and the gap in brackets."""
    lengths = long_tail()
    print("| arm | " + " | ".join(f"W = {ahead}" for ahead in AHEAD) + " |")
    print("|:--|" + "--:|" * len(AHEAD))
    for kind, most in ARMS:
        cells = []
        for ahead in AHEAD:
            (row,) = compare(Question(lengths, 8, 64, max_microbatches=most, lookahead=ahead), [kind])
            assert row.figures is not None
            cells.append(f"{row.figures.yardstick:.3f} ({row.figures.order_bias:+.3f}, {row.gap:.1%})")
        print(f"| {kind}{f', M = {most}' if most > 1 else ''} | " + " | ".join(cells) + " |")
    gaps = ", ".join(f"{each:.1%}" for each in above_the_bound(lengths, 32, 8, 64, windows=5))
    print(f"\nbest runs of neighbours, steps of any size, W = 32, five windows: {gaps} above the bound")


if __name__ == "__main__":
    main()
