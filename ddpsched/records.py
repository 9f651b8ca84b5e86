"""One row per rank and step: the schema that runs write and analysis reads.

Times are seconds and end in ``_s``; memory is bytes; what was not measured is
null, never 0. Rows are JSON lines while a run lasts (a killed run loses nothing),
each with a checksum, and one Parquet file when it has ended.
"""

import json
import math
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, TextIO, get_args

from pydantic import ConfigDict, TypeAdapter, ValidationError

from ddpsched.decode import decode_json, shown
from ddpsched.errors import AGAIN, DataError
from ddpsched.record_lines import read_sealed, sealed
from ddpsched.regular_file import check_regular
from ddpsched.table import first_fault

RECORDS = "records.parquet"


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One row: one rank in one step."""

    __pydantic_config__ = ConfigDict(strict=True, extra="forbid")

    run: str
    mode: str  # distributed | virtual | simulated
    policy: str
    seed: int
    epoch: int
    step: int
    rank: int
    world_size: int
    num_samples: int  # b_r, this rank's samples
    global_batch: int  # B, all ranks' samples in this step
    num_tokens: int  # real tokens of this rank
    padded_tokens: int  # sum over micro-batches of count * longest; of a menu of shapes, rows * length of each
    num_targets: int | None = None  # n_r, label tokens of this rank; null for a classifier
    max_length: int  # longest sample of this rank; 0 where it had none
    num_microbatches: int
    loss_scale: float  # G * b_r / B, of a mean over samples
    squared_tokens: int | None = None  # sum of the squared lengths of this rank's samples
    predicted_cost: int | None = None  # in the cost model's units
    lower_bound: int | None = None
    # planning, off the critical path
    offer_s: float | None = None
    exchange_s: float | None = None
    solve_s: float | None = None
    plan_wait_s: float | None = None  # what the step really waited for its plan
    # the step
    began_at_s: float | None = None  # plan in hand, on rank 0's clock since the run's first step; distributed runs
    unix_s: float | None = None  # plan in hand, in seconds since 1970 by this machine's clock
    steal_s: float | None = None  # processor time that the host took from this machine in the step, over processors
    data_s: float | None = None  # collate and copy to the device
    forward_s: float | None = None
    backward_s: float | None = None  # where gradients are reduced in backward, waiting for other ranks included
    compute_s: float | None = None  # plan in hand -> last gradient of this rank ready
    cpu_s: float | None = None  # process CPU time over compute_s
    wait_s: float | None = None  # last gradient ready -> all ranks' gradients in
    barrier_s: float | None = None  # the part of wait_s in the naive synchroniser's barrier
    comm_s: float | None = None  # some message of gradients under way, from its launch here to its end
    vote_s: float | None = None
    optimizer_s: float | None = None
    step_s: float | None = None
    peak_memory_bytes: int | None = None
    loss: float | None = None  # this rank's mean: over label tokens where train.target is token_mean, else over samples
    grad_norm: float | None = None  # of the whole step, before clipping
    lr: float | None = None  # null where the step was skipped, as its gradient was not finite
    plan_hash: str = ""
    recompiled: str | None = None  # why the model was compiled in this step, by the compiler's guards


COLUMNS: tuple[str, ...] = tuple(f.name for f in fields(StepRecord))
SCHEMA = TypeAdapter(StepRecord)
LARGEST = 2.0**128  # as float32 has them: seconds, rates
MAY_BE_NAN = ("loss", "grad_norm")
MAY_BE_NEGATIVE = ("loss", "began_at_s", "steal_s")  # a clock's offset, a counter that the host set back


class RecordWriter:
    """A writer of one process's records to files of a run's ``directory``, a line each, flushed.

    ``records-rank{rank}.jsonl`` holds a line for each record. ``timeline-rank{rank}.jsonl``, where timelines are given,
    holds a line for each step: when its parts began and ended. A new writer starts the files anew, unless its run
    ``goes_on`` after the lines that are there.
    """

    def __init__(self, directory: Path, rank: int, goes_on: bool = False) -> None:
        self.path = directory / f"records-rank{rank}.jsonl"
        self._timeline_path = directory / f"timeline-rank{rank}.jsonl"
        self._mode: Literal["a", "w"] = "a" if goes_on else "w"
        self._file = self.path.open(self._mode, encoding="utf-8")
        self._timeline: TextIO | None = None

    def write(self, *records: StepRecord, timeline: dict[str, Any] | None = None) -> None:
        """Append the rows of a step, and its timeline if there is one. Raises OSError, of a full disk for example."""
        for record in records:
            _append(self._file, sealed(json.dumps(vars(record))))
        if timeline is not None:
            self._timeline = self._timeline or self._timeline_path.open(self._mode, encoding="utf-8")
            _append(self._timeline, json.dumps(timeline))

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        if self._timeline is not None:
            self._timeline.close()


def _append(file: TextIO, line: str) -> None:
    file.write(line + "\n")
    file.flush()


def read_lines(directory: Path) -> list[dict[str, Any]]:
    """Return all ranks' JSON lines of a run, in (step, rank) order; an incomplete last line is left out.

    Raises DataError that names file and line for a line that was changed, or is no record, and for a step that is
    missing or there twice. A rank has none of the steps that fewer ranks ran.
    """
    rows = [
        _parsed(line, f"{path}, line {number}")
        for path in sorted(directory.glob("records-rank*.jsonl"))
        for number, line in read_sealed(path)
    ]
    rows.sort(key=lambda row: (row["step"], row["rank"]))
    last, sizes = dict[int, int](), {row["step"]: row["world_size"] for row in rows}
    for row in rows:
        step, rank = row["step"], row["rank"]
        due = last.get(rank, step - 1) + 1
        without = sum(size <= rank for each, size in sizes.items() if due <= each < step) if due < step else 0
        if due + without != step:
            fault = f"{due} of rank {rank} is missing" if step > due else f"{step} of rank {rank} is there twice"
            raise DataError(f"{directory}/records-rank*.jsonl: step {fault}; {AGAIN}")
        last[rank] = step
    return rows


def _parsed(line: bytes, place: str) -> dict[str, Any]:
    row: dict[str, Any] = {}
    try:
        row = vars(SCHEMA.validate_json(line))
        fault = unlikely(row)
    except ValidationError as error:
        fault = first_fault(error)
    if fault is not None:
        raise DataError(f"{place}: {fault}; this is no record of a step; {AGAIN}")
    return row


def unlikely(row: Mapping[str, Any]) -> str | None:
    """Return the first value of a record that no run writes; None where all can be."""
    for name, value in row.items():
        if isinstance(value, float) and not math.isfinite(value) and name not in MAY_BE_NAN:
            return f"{name} = {value}: must be finite"
        if isinstance(value, float) and abs(value) > LARGEST and name not in MAY_BE_NAN:
            return f"{name} = {value}: must be at most {LARGEST:g}"
        if isinstance(value, int | float) and value < 0 and name not in MAY_BE_NEGATIVE:
            return f"{name} = {value}: must be at least 0"
        if isinstance(value, int) and value >= 2**62:
            return f"{name} = {shown(value)}: must be below 2**62"
    if row["rank"] >= row["world_size"]:
        return f"rank = {row['rank']}: must be below world_size = {row['world_size']}"
    return None


def compact(directory: Path) -> int:
    """Write a run's JSON lines as one Parquet file, aside and then renamed; return how many steps they are of."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrow = {int: pa.int64(), float: pa.float64(), str: pa.string()}
    schema = pa.schema([(each.name, arrow[(*get_args(each.type), each.type)[0]]) for each in fields(StepRecord)])
    rows = read_lines(directory)
    table = pa.Table.from_pylist(rows, schema=schema)
    path, aside = directory / RECORDS, directory / (RECORDS + ".part")
    try:
        with aside.open("wb") as file:
            pq.write_table(table, file, write_page_checksum=True)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    return len({row["step"] for row in rows})


def read_json(path: Path, remedy: str = "") -> dict[str, Any]:
    """Return the object of a JSON file.

    Raises DataError, with its path and, where one is given, the ``remedy``, if it is missing, damaged or no object.
    """
    try:
        check_regular(path)
        value = decode_json(path.read_bytes())
    except OSError as error:
        fault = str(error.strerror)
    except ValueError as error:
        fault = f"it is no JSON ({error})"
    else:
        if isinstance(value, dict):
            return value
        fault = "it holds no object"
    raise DataError(f"{path} cannot be read: {fault}{remedy and f'; {remedy}'}")


def write_json(path: Path, value: Any, indent: int | None = 2) -> None:
    """Write ``value`` as ``write_text`` does. ``indent``: of each level; None for a line, which takes less room."""
    write_text(path, json.dumps(value, indent=indent) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write ``text`` as ``write_bytes`` does."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write ``content`` aside, sync, rename it to ``path``: a reader sees the old file or the new one."""
    write_all({path: content})


def write_all(contents: Mapping[Path, bytes]) -> None:
    """Write several files as ``write_bytes`` does one: where there is room for all of them, or else none."""
    # several ranks may write at once, and in one rank its watch and its loop
    end = f"{os.getpid()}-{threading.get_ident()}.part"
    asides = {path: path.with_name(f"{path.name}.{end}") for path in contents}
    try:
        for path, content in contents.items():
            with asides[path].open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        for path, aside in asides.items():
            os.replace(aside, path)
    except OSError as error:
        for aside in asides.values():
            aside.unlink(missing_ok=True)
        error.filename = str(path)  # and not a name that nobody gave
        raise
