"""Rectangles of one step: each sample's real tokens and padding on its rank, and the rank's wait for the slowest."""

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd


class Micro(NamedTuple):
    """A micro-batch: tokens of each of its samples, and the tokens that each is padded to; 0 for packed rows."""

    lengths: Sequence[int]
    width: int = 0


Ranks = Sequence[Sequence[Micro]]


def step_blocks(ranks: Ranks) -> pd.DataFrame:
    """Return a row per block: ``rank``, ``kind`` ("real", "padding" or "wait"), ``begin`` and ``tokens``.

    Blocks of a rank follow one another: of each sample the real tokens and its padding, the longest first, and at last
    the wait until the rank that computes most tokens is done. Blocks without tokens are left out.

    >>> step_blocks([[Micro([3, 1], 3)], [Micro([2], 2)]]).values.tolist()
    [[0, 'real', 0, 3], [0, 'real', 3, 1], [0, 'padding', 4, 2], [1, 'real', 0, 2], [1, 'wait', 2, 4]]
    """
    rows, ends = [], []
    for rank, micros in enumerate(ranks):
        begin = 0
        for micro in micros:
            for length in sorted(micro.lengths, reverse=True):
                for kind, tokens in (("real", length), ("padding", max(0, micro.width - length))):
                    rows.append((rank, kind, begin, tokens))
                    begin += tokens
        ends.append(begin)
    rows += [(rank, "wait", end, max(ends) - end) for rank, end in enumerate(ends)]
    table = pd.DataFrame(rows, columns=["rank", "kind", "begin", "tokens"])
    return table[table["tokens"] > 0].sort_values(["rank", "begin"], ignore_index=True)


def yardstick(blocks: pd.DataFrame) -> tuple[float, int, float]:
    """Return the yardstick of ``step_blocks``, the slowest rank's tokens, and an even share of the real ones."""
    slowest = int((blocks["begin"] + blocks["tokens"]).max())
    real = int(blocks.loc[blocks["kind"] == "real", "tokens"].sum())
    even = real / int(blocks["rank"].max() + 1)
    return slowest / even, slowest, even
