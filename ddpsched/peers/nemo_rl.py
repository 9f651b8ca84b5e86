"""NeMo-RL's sequence packing: a batch in rows by modified first-fit decreasing, dealt to ranks in turn; packed rows.

Reimplemented: the package asks for CUDA and its own builds. Nothing is dropped. Rows are made to be as many for each
rank by beginning rows of single samples.
"""

from collections.abc import Iterator

from ddpsched.peers.peer import Peer, Problem, Step
from ddpsched.peers.rows import dealt_rows, modified_first_fit_decreasing, of_even_number, row_tokens

PACKAGE = "ddpsched's reimplementation"


def _steps(problem: Problem) -> Iterator[Step]:
    tokens = row_tokens(problem)
    for start in range(0, len(problem.order), problem.global_batch):
        lengths = problem.in_order[start : start + problem.global_batch].tolist()
        rows = of_even_number(modified_first_fit_decreasing(lengths, tokens), problem.world_size)
        yield dealt_rows(problem, start, rows)


PEERS = (Peer("nemo_rl", PACKAGE, True, _steps),)
