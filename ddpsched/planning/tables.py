"""Columns out of a TSV, CSV, JSON-lines or Parquet file.

A reader takes a path and the columns wanted, each under the name of the option
that chose it, and gives them as lists, as they stand in the file; what they may
hold is the caller's question. Each raises DataError where the file is not what
its suffix says.
"""

import csv
import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ddpsched.errors import DataError

Columns = dict[str, list[Any]]
Wanted = Mapping[str, str]  # option -> column: {"data.text": "sentence"}


def read_columns(path: Path, wanted: Wanted) -> Columns:
    """The columns ``wanted`` of one file, by its suffix.

    DataError where the file is missing, cannot be read, is of another kind, has
    no header, a row with the wrong number of fields, or lacks a column.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"{path}: suffix {path.suffix!r} is not known; give one of {', '.join(READERS)}")
    try:
        return reader(path, wanted)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; check the path (it is relative to {Path.cwd()})") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error}); convert the file to UTF-8") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}); check the file and its rights") from None


def require_columns(source: object, present: Iterable[str], wanted: Wanted) -> None:
    """DataError, with the columns there are and the nearest one, where a wanted one is missing."""
    present = list(present)
    for option, column in wanted.items():
        if column not in present:
            option = option.split(" ")[0]  # of an option given twice, "--text NAME"
            near = difflib.get_close_matches(column, present, n=1, cutoff=0.4)
            hint = f"; did you mean {option}={near[0]}?" if near else f"; set {option} to one of them"
            raise DataError(f"{source}: no column {column!r}; it has {', '.join(map(repr, present))}{hint}")


def _tsv(path: Path, wanted: Wanted) -> Columns:
    # quotes are text here: read as quoting, one lone quote swallows all rows up to the next
    return _separated(path, wanted, delimiter="\t", quoting=csv.QUOTE_NONE)


def _csv(path: Path, wanted: Wanted) -> Columns:
    return _separated(path, wanted, delimiter=",", strict=True)


def _separated(path: Path, wanted: Wanted, **dialect: Any) -> Columns:
    columns: Columns = {name: [] for name in wanted.values()}
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, **dialect)
        try:
            header = next(rows, None)
            if header is None:
                raise DataError(
                    f"{path}: the file is empty; its first line must name the columns, then one row a sample"
                )
            require_columns(path, header, wanted)
            places = [(columns[name], header.index(name)) for name in wanted.values()]
            number = 0
            for row in rows:
                if not row:  # a blank line, usually the last
                    continue
                number += 1
                if len(row) != len(header):
                    raise DataError(
                        f"{path}, row {number} (line {rows.line_num}): {len(row)} fields where the header has "
                        f"{len(header)}: {str(row)[:120]}; mend or remove the row"
                    )
                for column, place in places:
                    column.append(row[place])
        except csv.Error as error:
            raise DataError(f"{path}, line {rows.line_num}: {error}; mend or remove the row") from None
    return columns


def _jsonl(path: Path, wanted: Wanted) -> Columns:
    rows = []
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise DataError(f"{path}, line {number}: not JSON ({error}); each line must be one object") from None
            if not isinstance(row, dict):
                raise DataError(
                    f"{path}, line {number}: {line.strip()[:80]!r} is not an object like {_example(wanted)}"
                )
            rows.append(row)
    if not rows:
        raise DataError(f"{path}: the file is empty; give one object like {_example(wanted)} a line")
    require_columns(path, dict.fromkeys(key for row in rows for key in row), wanted)
    return {name: [row.get(name) for row in rows] for name in wanted.values()}


def _example(wanted: Wanted) -> str:
    said = {option: "text" in option or "prompt" in option for option in wanted}
    return json.dumps({column: "some text" if said[option] else 0 for option, column in wanted.items()})


def _parquet(path: Path, wanted: Wanted) -> Columns:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            require_columns(path, file.schema_arrow.names, wanted)
            table = file.read(columns=list(wanted.values()))
    except pa.ArrowInvalid as error:
        raise DataError(f"{path}: not a Parquet file ({error}); write it again, or rename it to what it is") from None
    return {name: table.column(name).to_pylist() for name in wanted.values()}


READERS: dict[str, Callable[[Path, Wanted], Columns]] = {
    ".tsv": _tsv,
    ".csv": _csv,
    ".jsonl": _jsonl,
    ".json": _jsonl,
    ".parquet": _parquet,
}
