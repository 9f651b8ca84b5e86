"""TRL's packing of a data set, and its batcher of rollouts; packed rows.

``pack_dataset`` packs chunks of 1,000 samples, best fit decreasing; rows come in random order. "bfd" truncates a sample
above a row's tokens, "bfd_split" cuts it into several; here a row holds the longest, so they are one. The batcher of
its asynchronous GRPO trainer keeps an open row for each rank, and gives a sample, in order, to the row whose sum of
squared lengths is the smallest of those with room; where none has, all rows are run. It is reimplemented here, as its
module needs vLLM's clients: samples above the budget are dropped with a warning, and so are the rows that are open when
the data end.
"""

from collections.abc import Iterator

import numpy as np

from ddpsched.peers.budget import budgeted
from ddpsched.peers.packages import need, need_alone
from ddpsched.peers.peer import Problem, Step
from ddpsched.peers.rows import shuffled_rows

PACKAGE = "--no-deps trl==1.16.0"


def _packed(problem: Problem, budget: int) -> Iterator[Step]:
    """Yield a row for each rank; a row is known by its tokens, each of which is the number of its sample."""
    pack = need_alone("trl.data_utils", PACKAGE).pack_dataset
    datasets = need("datasets", "datasets")
    tokens = [[id] * length for id, length in enumerate(problem.lengths.tolist())]
    quiet = not datasets.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        packed = pack(datasets.Dataset.from_dict({"input_ids": tokens}), budget, "bfd")
    finally:
        if not quiet:
            datasets.enable_progress_bars()
    rows = [np.unique(np.array(row, dtype=np.int64)) for row in packed["input_ids"]]
    return shuffled_rows(problem, rows)


def _token_budget(problem: Problem, budget: int) -> Iterator[Step]:
    rows: list[list[int]] = [[] for _ in range(problem.world_size)]
    squares, tokens = [0] * len(rows), [0] * len(rows)
    for position, length in enumerate(problem.in_order.tolist()):
        fits = [row for row in range(len(rows)) if tokens[row] + length <= budget]
        if not fits:
            yield [[problem.ids(row)] for row in rows]
            rows = [[] for _ in rows]
            squares, tokens, fits = [0] * len(rows), [0] * len(rows), list(range(len(rows)))
        row = min(fits, key=squares.__getitem__)
        rows[row].append(position)
        squares[row] += length * length
        tokens[row] += length


PEERS = (
    budgeted("trl_bfd", PACKAGE, _packed, packed=True),
    budgeted("trl_token_budget", "ddpsched's reimplementation", _token_budget, packed=True),
)
