"""DeepSpeed's ``variable_batch_size_and_lr``: as many samples in a row as a sum of lengths allows, a micro-batch each.

The budget counts real tokens, the collated micro-batch is padded.
"""

import logging
from collections.abc import Iterator
from itertools import islice
from typing import Any

from ddpsched.peers.budget import budgeted
from ddpsched.peers.packages import need
from ddpsched.peers.peer import Problem, Step

PACKAGE = "deepspeed==0.19.8"
WINDOW = 16  # micro-batches asked for at a time


def _steps(problem: Problem, budget: int) -> Iterator[Step]:
    module = need("deepspeed.runtime.data_pipeline.data_sampling.variable_batch_size_and_lr", PACKAGE)
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    return _deal(problem, _microbatches(module.batch_by_seqlens, problem.in_order.tolist(), budget))


def _microbatches(batch_by_seqlens: Any, lengths: list[int], budget: int) -> Iterator[list[int]]:
    """Yield the positions of each micro-batch, from windows of the lengths.

    A call over N samples tries every end for every start, more than N**2 work. A micro-batch depends only on
    the samples from its first to the one after its last, so windows give the same ones, except for the
    window's last, which its end may have cut short: the next window begins with it.
    """
    start, window = 0, WINDOW * max(1, budget * len(lengths) // sum(lengths))
    while start < len(lengths):
        part = lengths[start : start + window]
        last = start + len(part) == len(lengths)
        if last and len(part) < 2:
            return  # one sample left: it never emits the last one
        groups = [positions for _, positions in batch_by_seqlens(part, budget)[0]]
        if not last and len(groups) < 2:
            window *= 2
            continue
        for group in groups if last else groups[:-1]:
            yield [start + int(position) for position in group]
        if last:
            return
        start += groups[-1][0]


def _deal(problem: Problem, micro: Iterator[list[int]]) -> Iterator[Step]:
    """Yield steps in which rank r of step k has micro-batch k*G + r; micro-batches that fill no step are dropped."""
    while len(step := list(islice(micro, problem.world_size))) == problem.world_size:
        yield [[problem.ids(positions)] for positions in step]


PEERS = (budgeted("deepspeed", PACKAGE, _steps),)
