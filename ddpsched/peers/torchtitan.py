"""torchtitan's batcher of rollouts: rows filled in the order of arrival, dealt to ranks in turn; packed rows.

Reimplemented after its experiments/rl/components/batcher.py of August 2026. Each micro-batch of a rank is one row, and
all ranks have as many; a rank without a row runs one of padding. Rows are padded to their cap there. A sample above the
cap is dropped with a warning; here the cap holds the longest.
"""

from collections.abc import Iterator

from ddpsched.peers.peer import Peer, Problem, Step
from ddpsched.peers.rows import dealt_rows, next_fit, row_tokens

PACKAGE = "ddpsched's reimplementation"


def _steps(problem: Problem) -> Iterator[Step]:
    tokens = row_tokens(problem)
    for start in range(0, len(problem.order), problem.global_batch):
        lengths = problem.in_order[start : start + problem.global_batch].tolist()
        yield dealt_rows(problem, start, next_fit(lengths, tokens))


PEERS = (Peer("torchtitan", PACKAGE, True, _steps),)
