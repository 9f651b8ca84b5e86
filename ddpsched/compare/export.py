"""The plans as Parquet or CSV, so that anyone can check the figures without this package."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ddpsched.compare.arms import Question
from ddpsched.costs.cost_model import Int
from ddpsched.data.lengths import KnownLengths
from ddpsched.exchange import LocalExchange
from ddpsched.planning.plan_spec import PlanSpec
from ddpsched.planning.planner import plan_steps
from ddpsched.step_plan import Microbatch, StepPlan

EXPORTED = ("epoch", "step", "rank", "microbatch", "position", "id", "length", "pad_to")
OF_PARTS = ("part", "parts", "start", "end")  # where samples may be split: part of parts, and its tokens
SUFFIXES = (".parquet", ".csv")
CHUNK = 4096  # micro-batches written at a time


def export(question: Question, spec: PlanSpec, path: Path) -> int:
    """Write the plans of ``spec`` to ``path``, Parquet or CSV, a row for each sample that is run; return their number.

    Columns epoch, step, rank, microbatch, position, id, length, pad_to; a padded micro-batch pads each of its samples
    to its longest, a packed one to its length. Where samples may be split also part, parts, start and end: a row for
    each range of tokens, of whole samples 0, 1, 0 and their length. Nothing is left behind where writing fails.
    """
    import pyarrow as pa
    from pyarrow.csv import CSVWriter
    from pyarrow.parquet import ParquetWriter

    splits = spec.policy.splits
    schema = pa.schema([(name, pa.int64()) for name in EXPORTED + OF_PARTS * splits])
    aside, rows = path.with_name(f"{path.name}.part"), 0
    plans = plan_steps(spec, KnownLengths(question.lengths), LocalExchange(spec.world_size))
    blocks = itertools.chain.from_iterable(_exported(plan, question.lengths, splits) for plan in plans)
    try:
        with (CSVWriter if path.suffix.lower() == ".csv" else ParquetWriter)(aside, schema) as writer:
            while chunk := list(itertools.islice(blocks, CHUNK)):
                columns = np.hstack(chunk)
                writer.write_table(pa.table(list(columns), schema=schema))
                rows += columns.shape[1]
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    return rows


def _exported(plan: StepPlan, lengths: Int, splits: bool) -> Iterator[Int]:
    """Yield (8, count), the columns of each micro-batch; (12, count) with those of parts."""
    for rank, micros in enumerate(plan.ranks):
        for number, micro in enumerate(micros):
            length = lengths[micro.ids]
            place = np.broadcast_to(np.array([[plan.epoch], [plan.step], [rank], [number]]), (4, len(micro)))
            pad_to = length if micro.packed else np.full(len(micro), micro.padded_length(length))
            columns = np.vstack([place, np.arange(len(micro)), micro.ids, length, pad_to])
            yield _with_parts(columns, micro, length) if splits else columns


def _with_parts(columns: Int, micro: Microbatch, length: Int) -> Int:
    """Return (12, rows): a row for each sample, or for each range of tokens of a part."""
    if micro.part is None:
        zeros = np.zeros_like(length)
        return np.vstack([columns, zeros, zeros + 1, zeros, length])
    starts, ends = np.array(micro.part.ranges, dtype=np.int64).T
    number = len(starts)
    columns = np.repeat(columns, number, axis=1)
    columns[-1] = ends - starts  # a part pads to nothing: it computes the tokens of its ranges
    return np.vstack([columns, np.full(number, micro.part.index), np.full(number, micro.part.count), starts, ends])
