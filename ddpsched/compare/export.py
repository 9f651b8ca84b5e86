"""The plans themselves as Parquet, so that anyone can check the figures without our code."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ddpsched.compare.arms import Question, plans
from ddpsched.costs.cost_model import Int
from ddpsched.plan import StepPlan
from ddpsched.planning.plan_spec import PlanSpec

EXPORTED = ("epoch", "step", "rank", "microbatch", "position", "id", "length", "pad_to")
CHUNK = 4096  # micro-batches written at a time


def export(question: Question, spec: PlanSpec, path: Path) -> int:
    """Write the plans as Parquet, a row for each sample that is run, and say how many.

    Columns epoch, step, rank, microbatch, position, id, length, pad_to; a padded micro-batch pads each of its samples
    to its longest, a packed one to its own length. Nothing is left behind where writing fails.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.int64()) for name in EXPORTED])
    aside = path.with_name(f"{path.name}.part")
    rows = 0
    try:
        with pq.ParquetWriter(aside, schema) as writer:
            chunk: list[Int] = []
            for plan in plans(question, spec):
                chunk += _exported(plan, question.lengths)
                if len(chunk) >= CHUNK:
                    rows += _write(writer, schema, chunk)
                    chunk = []
            rows += _write(writer, schema, chunk)
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    return rows


def _exported(plan: StepPlan, lengths: Int) -> Iterator[Int]:
    """(8, count), of each micro-batch."""
    for rank, own in enumerate(plan.ranks):
        for number, micro in enumerate(own):
            length = lengths[micro.ids]
            place = np.broadcast_to(np.array([[plan.epoch], [plan.step], [rank], [number]]), (4, len(micro)))
            pad_to = length if micro.packed else np.full(len(micro), micro.padded_length(length))
            yield np.vstack([place, np.arange(len(micro)), micro.ids, length, pad_to])


def _write(writer: Any, schema: Any, chunk: list[Int]) -> int:
    import pyarrow as pa

    if not chunk:
        return 0
    columns = np.hstack(chunk)
    writer.write_table(pa.table(list(columns), schema=schema))
    return columns.shape[1]
