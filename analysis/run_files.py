"""The files of a run's folder, checked as they are read: each fault names file, key or line, and what should be there.

Only what the analysis reads is checked; a later version may write more.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ddpsched.decode import decode_json, decode_toml
from ddpsched.errors import AGAIN, DataError
from ddpsched.records import COLUMNS, LARGEST, MAY_BE_NAN, MAY_BE_NEGATIVE, RECORDS, read_lines
from ddpsched.table import FolderName, Positive, first_fault

# Columns that all metrics need; any other may be missing or null.
REQUIRED = ("step", "rank", "world_size", "num_samples", "global_batch", "num_tokens", "padded_tokens")
WHOLE, REAL = np.dtype("int64"), np.dtype("float64")
TEXT = ("run", "mode", "policy", "plan_hash")
LINES = "records-rank*.jsonl"  # of all ranks
EVALUATION_COLUMNS = ("step", "loss", "accuracy", "perplexity", "num_samples", "majority")

Count = Annotated[int, Field(ge=0, lt=2**63)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Part(BaseModel):
    """A table of which some keys are checked."""

    model_config = ConfigDict(strict=True, extra="allow")


class PolicyPart(Part):
    """[policy]."""

    kind: str
    prefetch: Positive | None = None
    peer: str | None = None


class ExecutorPart(Part):
    """[executor]."""

    kind: Literal["distributed", "virtual", "simulated"]
    threads: Positive | None = None


class ConfigPart(Part):
    """A run's config.toml."""

    name: str
    study: FolderName  # names of figures begin with it
    seed: Count
    world_size: Positive
    global_batch: Positive
    steps: Positive | None = None
    epochs: Positive | None = None
    aa: bool = False
    policy: PolicyPart
    executor: ExecutorPart
    data: dict[str, Any]
    model: dict[str, Any]
    train: dict[str, Any]


class LaunchPart(Part):
    """The runs that a run's times are compared with."""

    how: str
    id: str
    margin: Annotated[float, Field(gt=0, lt=1)] | None = None


class ClockPart(Part):
    """The clock of a rank."""

    rank: Count
    offset_s: Finite
    uncertainty_s: Finite


class EnvironmentPart(Part):
    """A run's environment.json."""

    device: str | None = None
    cpu: str | None = None
    cores: Count | None = None
    memory_bytes: Count | None = None
    versions: dict[str, str | None] = {}
    num_samples: Count | None = None
    num_parameters: Count | None = None
    contents: dict[str, str] | None = None
    launch: LaunchPart | None = None
    clocks: list[ClockPart] | None = None


class EvaluationLine(Part):
    """A line of evaluations.jsonl."""

    step: Count
    loss: float | None = None
    accuracy: float | None = None
    perplexity: float | None = None
    num_samples: Count | None = None
    majority: float | None = None


class TimelineLine(Part):
    """A line of timeline-rank*.jsonl."""

    step: Count
    microbatches: list[list[Finite]]
    collectives: list[Annotated[tuple[str, Count, Finite, Finite], Field(strict=False)]]


P = TypeVar("P", bound=Part)


def read_config(folder: Path) -> dict[str, Any]:
    """Return config.toml. Raises DataError."""
    return _read(folder / "config.toml", decode_toml, ConfigPart)


def read_environment(folder: Path) -> dict[str, Any]:
    """Return environment.json. Raises DataError."""
    return _read(folder / "environment.json", decode_json, EnvironmentPart)


def read_records(folder: Path) -> pd.DataFrame:
    """Return records.parquet, its pages checked; where it is lost, all ranks' JSON lines. Raises DataError."""
    path = folder / RECORDS
    try:
        return pd.read_parquet(path, page_checksum_verification=True)
    except FileNotFoundError:
        return pd.DataFrame(_lines(folder))
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError, MemoryError) as error:
        lines = any(folder.glob(LINES))
        remedy = f"remove it, and {folder / LINES} stand in for it" if lines else AGAIN
        raise DataError(f"{path}: cannot be read ({_brief(error)}); {remedy}") from None


def records_of(folder: Path) -> Path:
    """Return the path that ``read_records`` reads, for messages."""
    path = folder / RECORDS
    return path if path.exists() else folder / LINES


def _lines(folder: Path) -> list[dict[str, Any]]:
    """Return the lines that were to become records.parquet, of a run that was done with them. Raises DataError."""
    paths = sorted(folder.glob(LINES))
    if not paths:
        raise DataError(f"{folder / RECORDS}: no such file, and no JSON lines of its ranks; {AGAIN}")
    for path in paths:
        *lines, rest = path.read_bytes().split(b"\n")
        if rest:
            raise DataError(f"{path}, line {len(lines) + 1}: it ends in the middle; {AGAIN}")
    if not (rows := read_lines(folder)):
        raise DataError(f"{folder / LINES}: no record is in these files; {AGAIN}")
    return rows


def read_object_lines(path: Path, part: type[P], ended: bool) -> list[dict[str, Any]]:
    """Return a file's JSON lines; none where there is no file.

    ``ended``: its run was done with it, so a last line that is cut off is a fault; else that line is passed over.
    Raises DataError.
    """
    try:
        *lines, rest = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    if ended and rest:
        raise DataError(f"{path}, line {len(lines) + 1}: it ends in the middle; {AGAIN}")
    return [_checked(f"{path}, line {number}", decode_json, line, part) for number, line in enumerate(lines, 1) if line]


def read_evaluations(folder: Path) -> pd.DataFrame:
    """Return the lines of evaluations.jsonl as a table. Raises DataError."""
    table = pd.DataFrame(read_object_lines(folder / "evaluations.jsonl", EvaluationLine, ended=True))
    return table.reindex(columns=list(EVALUATION_COLUMNS)).astype("float64").sort_values("step", ignore_index=True)


def clean(records: pd.DataFrame, source: object = "records") -> pd.DataFrame:
    """Return all columns of the schema, in (step, rank) order; numbers as numbers, null as NaN.

    Raises DataError where a required column is missing, a column is no column of records, there are no rows, or a value
    is none that a run writes.
    """
    if missing := [name for name in REQUIRED if name not in records]:
        raise DataError(f"{source}: records lack {', '.join(missing)}; {AGAIN}")
    if not records.columns.is_unique:
        raise DataError(f"{source}: more than one column has the same name; {AGAIN}")
    if others := [str(name) for name in records if name not in COLUMNS]:
        raise DataError(
            f"{source}: another version wrote it: {', '.join(others)[:200]} is no column of records now; {AGAIN}"
        )
    if records.empty:
        raise DataError(f"{source}: records hold no rows; {AGAIN}")
    there = [name for name in COLUMNS if name in records]
    numeric = [name for name in there if name not in TEXT]
    columns = {name: _numbers(records, name, source) for name in numeric}
    values = np.stack([columns[name].astype(np.float64) for name in numeric], axis=1)  # (rows, columns)
    low = np.array([-np.inf if name in MAY_BE_NEGATIVE else 0.0 for name in numeric])
    high = np.array([np.inf if name in MAY_BE_NAN else LARGEST for name in numeric])
    wrong = (values < low) | (values > high) | (values < -high)
    if wrong.any():
        row, place = map(int, np.argwhere(wrong)[0])
        fault = f"{numeric[place]} = {columns[numeric[place]][row]} in row {row}, which no run writes"
        raise DataError(f"{source}: {fault}; {AGAIN}")
    table = pd.DataFrame({name: columns.get(name, records[name].to_numpy()) for name in there})
    if (beyond := columns["rank"] >= columns["world_size"]).any():
        row = int(beyond.argmax())
        raise DataError(f"{source}: rank = {columns['rank'][row]} in row {row} is not below world_size; {AGAIN}")
    if (again := table.duplicated(["step", "rank"])).any():
        step, rank = table[["step", "rank"]][again].iloc[0]
        raise DataError(f"{source}: step {step} of rank {rank} is there twice; {AGAIN}")
    return table.reindex(columns=list(COLUMNS)).sort_values(["step", "rank"], ignore_index=True)


def _numbers(records: pd.DataFrame, name: str, source: object) -> Any:
    column, wanted = records[name], WHOLE if name in REQUIRED else REAL
    if column.dtype == wanted:
        return column.to_numpy()
    try:
        return pd.to_numeric(column).astype(wanted).to_numpy()
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(f"{source}: column {name} is not of numbers ({_brief(error)}); {AGAIN}") from None


def _read(path: Path, decode: Callable[[Any], Any], part: type[P]) -> dict[str, Any]:
    try:
        text = path.read_bytes()
        return _checked(str(path), decode, text.decode() if decode is decode_toml else text, part)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; {AGAIN}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error}); {AGAIN}") from None


def _checked(place: str, decode: Callable[[Any], Any], text: Any, part: type[P]) -> dict[str, Any]:
    try:
        value: dict[str, Any] = decode(text)
        part.model_validate(value)
        return value
    except ValidationError as error:
        fault = first_fault(error)
    except ValueError as error:
        fault = f"cannot be decoded: {error}"
    raise DataError(f"{place}: {fault}; {AGAIN}")


def _brief(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
