"""Columns out of a TSV, CSV, JSON-lines or Parquet file, as a whole or in chunks of rows.

A reader takes a path and the columns wanted, each under the name of the option
that chose it, and gives them as lists, as they stand in the file; what they may
hold is the caller's question. Each raises DataError where the file is not what
its suffix says.
"""

import csv
import difflib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddpsched.errors import DataError

Columns = dict[str, list[Any]]
Wanted = Mapping[str, str]  # option -> column: {"data.text": "sentence"}
WHOLE = sys.maxsize  # rows


@dataclass(frozen=True)
class Chunk:
    """Rows ``first`` to ``first + num_rows`` of a file, the ``number``-th chunk; ``share`` of the file was read."""

    number: int
    first: int
    num_rows: int
    columns: Columns
    share: float = 1.0


Mine = Callable[[int], bool]  # of a chunk's number: whether its rows are wanted


@dataclass(frozen=True)
class Reading:
    """How a file is read: ``size`` rows a chunk, and only the chunks that are ``mine``; None wants all columns."""

    path: Path
    wanted: Wanted | None
    size: int = WHOLE
    mine: Mine = lambda number: True


def read_columns(path: Path, wanted: Wanted) -> Columns:
    """The columns ``wanted`` of one file, by its suffix.

    DataError where the file is missing, cannot be read, is of another kind, has
    no header, a row with the wrong number of fields, or lacks a column.
    """
    found = next(read_chunks(path, wanted), None)
    return {name: [] for name in wanted.values()} if found is None else found.columns


def read_chunks(
    path: Path, wanted: Wanted | None, size: int = WHOLE, mine: Mine = lambda number: True
) -> Iterator[Chunk]:
    """The same in chunks of ``size`` rows, the last one with the rest, of which only those that are ``mine`` are held.

    ``wanted``: None for all columns.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"{path}: suffix {path.suffix!r} is not known; give one of {', '.join(READERS)}")
    try:
        yield from reader(Reading(path, wanted, size, mine))
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


def _tsv(reading: Reading) -> Iterator[Chunk]:
    # quotes are text here: read as quoting, one lone quote swallows all rows up to the next
    return _separated(reading, delimiter="\t", quoting=csv.QUOTE_NONE)


def _csv(reading: Reading) -> Iterator[Chunk]:
    return _separated(reading, delimiter=",", strict=True)


def _separated(reading: Reading, **dialect: Any) -> Iterator[Chunk]:
    path = reading.path
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, **dialect)
        try:
            header = next(rows, None)
            if header is None:
                raise DataError(
                    f"{path}: the file is empty; its first line must name the columns, then one row a sample"
                )
            names = header
            if reading.wanted is not None:
                require_columns(path, header, reading.wanted)
                names = list(reading.wanted.values())
            places = [header.index(name) for name in names]
            held: list[list[Any]] = [[] for _ in names]
            filled = list(zip(held, places, strict=True))
            number = count = 0
            keeps = reading.mine(0)
            for row in rows:
                if not row:  # a blank line, usually the last
                    continue
                if count == (number + 1) * reading.size:
                    yield Chunk(number, number * reading.size, reading.size, _named(names, held), _share(file))
                    number += 1
                    keeps = reading.mine(number)
                count += 1
                if len(row) != len(header):
                    raise DataError(
                        f"{path}, row {count} (line {rows.line_num}): {len(row)} fields where the header has "
                        f"{len(header)}: {str(row)[:120]}; mend or remove the row"
                    )
                if keeps:
                    for column, place in filled:
                        column.append(row[place])
        except csv.Error as error:
            raise DataError(f"{path}, line {rows.line_num}: {error}; mend or remove the row") from None
        if count:
            yield Chunk(number, number * reading.size, count - number * reading.size, _named(names, held))


def _share(file: Any) -> float:
    """How much of a text file was read, buffered lines included."""
    return float(file.buffer.tell() / max(1, os.fstat(file.fileno()).st_size))


def _named(names: list[str], held: list[list[Any]]) -> Columns:
    """What has been collected, handed over: the lists begin anew."""
    columns = dict(zip(names, map(list, held), strict=True))
    for column in held:
        column.clear()
    return columns


def _jsonl(reading: Reading) -> Iterator[Chunk]:
    path, example = reading.path, _example(reading.wanted or {"text": "text"})
    rows: list[dict[str, Any]] = []
    number = count = 0
    with path.open(encoding="utf-8-sig") as file:
        keeps = reading.mine(0)
        for line_number, line in enumerate(file, 1):
            if not line.strip():
                continue
            if count == (number + 1) * reading.size:
                columns = _of_rows(reading, rows, number)
                yield Chunk(number, number * reading.size, reading.size, columns, _share(file))
                rows, number = [], number + 1
                keeps = reading.mine(number)
            count += 1
            if not keeps:
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise DataError(
                    f"{path}, line {line_number}: not JSON ({error}); each line must be one object"
                ) from None
            if not isinstance(row, dict):
                raise DataError(f"{path}, line {line_number}: {line.strip()[:80]!r} is not an object like {example}")
            rows.append(row)
    if not count:
        raise DataError(f"{path}: the file is empty; give one object like {example} a line")
    yield Chunk(number, number * reading.size, count - number * reading.size, _of_rows(reading, rows, number))


def _of_rows(reading: Reading, rows: list[dict[str, Any]], number: int) -> Columns:
    present = dict.fromkeys(key for row in rows for key in row)
    if reading.wanted is None:
        return {name: [row.get(name) for row in rows] for name in present}
    if rows and number == 0:
        require_columns(reading.path, present, reading.wanted)
    return {name: [row.get(name) for row in rows] for name in reading.wanted.values()}


def _example(wanted: Wanted) -> str:
    said = {option: "text" in option or "prompt" in option for option in wanted}
    return json.dumps({column: "some text" if said[option] else 0 for option, column in wanted.items()})


def _parquet(reading: Reading) -> Iterator[Chunk]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = reading.path
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if reading.wanted is not None:
                require_columns(path, names, reading.wanted)
                names = list(reading.wanted.values())
            total = file.metadata.num_rows
            size = min(reading.size, total)
            read: list[pa.Table] = []
            number = 0
            for batch in file.iter_batches(columns=names, batch_size=min(size, 65_536)) if total else ():
                read.append(pa.Table.from_batches([batch]))
                while sum(map(len, read)) >= min(size, total - number * size) > 0:
                    table = pa.concat_tables(read)
                    yield _of_table(table.slice(0, size), number, size, total, reading.mine(number))
                    read, number = [table.slice(size)], number + 1
    except pa.ArrowInvalid as error:
        raise DataError(f"{path}: not a Parquet file ({error}); write it again, or rename it to what it is") from None


def _of_table(table: Any, number: int, size: int, total: int, keeps: bool) -> Chunk:
    columns = {name: table.column(name).to_pylist() if keeps else [] for name in table.column_names}
    return Chunk(number, number * size, len(table), columns, min(1.0, (number + 1) * size / total))


READERS: dict[str, Callable[[Reading], Iterator[Chunk]]] = {
    ".tsv": _tsv,
    ".csv": _csv,
    ".jsonl": _jsonl,
    ".json": _jsonl,
    ".parquet": _parquet,
}
