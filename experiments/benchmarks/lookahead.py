"""Yardstick, order bias and gap by lookahead, for lengths with a long tail, as Markdown.

    python -m experiments.benchmarks.lookahead

40,000 lengths from a log-normal law (median 55, sigma 1.5, cut at 20,000 tokens), on 8 ranks with 64 samples a step:
in most batches one sample is longer than a rank's share, and no assignment within the batch can be faster than it. The
gap is to what W steps take at least, however their samples are dealt to them.
"""

import numpy as np

from ddpsched.compare import Question, compare
from ddpsched.costs.cost_model import Int

AHEAD = (1, 2, 4, 8, 32)
ARMS = (("balanced", 1), ("balanced", 4), ("packed", 1))


def long_tail(size: int = 40_000) -> Int:
    """Return ``size`` lengths from the log-normal law, (size,), int64, in tokens."""
    lengths = np.exp(np.random.default_rng(0).normal(4.0, 1.5, size))
    return np.minimum(lengths.astype(np.int64) + 3, 20_000)


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


if __name__ == "__main__":
    main()
