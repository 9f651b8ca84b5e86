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
from ddpsched.step_plan import StepPlan

EXPORTED = ("epoch", "step", "rank", "microbatch", "position", "id", "length", "pad_to")
SUFFIXES = (".parquet", ".csv")
CHUNK = 4096  # micro-batches written at a time


def export(question: Question, spec: PlanSpec, path: Path) -> int:
    """Write the plans of ``spec`` to ``path``, Parquet or CSV, a row for each sample that is run; return their number.

    Columns epoch, step, rank, microbatch, position, id, length, pad_to; a padded micro-batch pads each of its samples
    to its longest, a packed one to its length. Nothing is left behind where writing fails.
    """
    import pyarrow as pa
    from pyarrow.csv import CSVWriter
    from pyarrow.parquet import ParquetWriter

    schema = pa.schema([(name, pa.int64()) for name in EXPORTED])
    aside, rows = path.with_name(f"{path.name}.part"), 0
    plans = plan_steps(spec, KnownLengths(question.lengths), LocalExchange(spec.world_size))
    blocks = itertools.chain.from_iterable(_exported(plan, question.lengths) for plan in plans)
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


def _exported(plan: StepPlan, lengths: Int) -> Iterator[Int]:
    """Yield (8, count), the columns of each micro-batch."""
    for rank, micros in enumerate(plan.ranks):
        for number, micro in enumerate(micros):
            length = lengths[micro.ids]
            place = np.broadcast_to(np.array([[plan.epoch], [plan.step], [rank], [number]]), (4, len(micro)))
            pad_to = length if micro.packed else np.full(len(micro), micro.padded_length(length))
            yield np.vstack([place, np.arange(len(micro)), micro.ids, length, pad_to])
