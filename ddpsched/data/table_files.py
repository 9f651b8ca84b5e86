"""Columns of a TSV, CSV, JSON-lines or Parquet file, read whole or in chunks of rows.

A reader takes a path, the columns wanted, each under the name of the option that chose it, and a number of rows. It
yields blocks of so many rows, whose columns are lists of the file's values, unchecked, made only where they are asked
for. Each raises DataError where the file is not what its suffix says.
"""

import csv
import difflib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from ddpsched.decode import decode_json
from ddpsched.errors import DataError
from ddpsched.regular_file import check_regular

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


Mine = Callable[[int], bool]  # takes a chunk's number; False where its rows are not wanted
Block = tuple[int, float, Callable[[], Columns]]  # number of rows; share of the file read with them; their columns


def read_columns(path: Path, wanted: Wanted) -> Columns:
    """Return the columns ``wanted`` of one file, whose suffix names its format.

    Raises DataError where the file is missing, cannot be read, is of another format, has no header, a row with the
    wrong number of fields, or lacks a column.
    """
    chunk = next(read_chunks(path, wanted), None)
    return {name: [] for name in wanted.values()} if chunk is None else chunk.columns


def read_chunks(
    path: Path, wanted: Wanted | None, size: int = WHOLE, mine: Mine = lambda number: True
) -> Iterator[Chunk]:
    """Yield a file in chunks of ``size`` rows, the last one with the rest.

    ``wanted``: None for all columns. Chunks for which ``mine(number)`` is False have empty columns. Raises DataError
    as :func:`read_columns` does.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"{path}: suffix {path.suffix!r} is not known; give one of {', '.join(READERS)}")
    with opened(path):
        yield from numbered(reader(path, wanted, size), wanted, size, mine)


@contextmanager
def opened(path: Path) -> Iterator[None]:
    """Raise DataError for what goes wrong while ``path`` is read in the block, and where it is no regular file."""
    try:
        check_regular(path)
        yield
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; check the path (it is relative to {Path.cwd()})") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error}); convert the file to UTF-8") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}); check the file and its rights") from None


def numbered(blocks: Iterator[Block], wanted: Wanted | None, size: int, mine: Mine) -> Iterator[Chunk]:
    """Yield blocks of ``size`` rows as chunks, with empty columns where ``mine(number)`` is False."""
    for number, (num_rows, share, columns) in enumerate(blocks):
        kept = columns() if mine(number) else {name: [] for name in (wanted or {}).values()}
        yield Chunk(number, number * size, num_rows, kept, share)


def sliced(
    num_rows: int, columns: Callable[[slice], Columns], wanted: Wanted | None, size: int, mine: Mine
) -> Iterator[Chunk]:
    """Yield rows that can be sliced, in chunks; ``columns(rows)`` returns those of a slice."""
    slices = (slice(first, min(first + size, num_rows)) for first in range(0, num_rows, size))
    blocks = ((rows.stop - rows.start, rows.stop / num_rows, partial(columns, rows)) for rows in slices)
    return numbered(blocks, wanted, size, mine)


def columns_to_read(source: object, present: Iterable[str], wanted: Wanted | None) -> list[str]:
    """Return the ``wanted`` columns, or all that are present where that is None.

    Raises DataError, with the columns present and the most similar one, where a wanted one is missing.
    """
    present = list(present)
    for option, column in (wanted or {}).items():
        if column not in present:
            option = option.split(" ")[0]  # an option that may be given twice is "--text NAME"
            near = difflib.get_close_matches(column, present, n=1, cutoff=0.4)
            hint = f"; did you mean {option}={near[0]}?" if near else f"; set {option} to one of them"
            raise DataError(f"{source}: no column {column!r}; it has {', '.join(map(repr, present))}{hint}")
    columns = present if wanted is None else list(dict.fromkeys(wanted.values()))
    if twice := sorted({column for column in columns if present.count(column) > 1}):
        names = ", ".join(map(repr, twice))
        raise DataError(f"{source}: more than one column is named {names}; give each a name of its own")
    return columns


def _blocks(
    file: Any, rows: Iterator[Any], size: int, columns: Callable[[list[Any], bool], Columns]
) -> Iterator[Block]:
    """Yield ``rows`` of an open text file; ``columns(rows, is_first)`` turns those of a block into columns."""
    is_first = True
    while block := list(islice(rows, size)):
        share = file.buffer.tell() / os.fstat(file.fileno()).st_size  # lines read ahead included
        yield len(block), share, partial(columns, block, is_first)
        is_first = False


def _separated(path: Path, wanted: Wanted | None, size: int, **dialect: Any) -> Iterator[Block]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = csv.reader(file, **dialect)
        places, width = header_places(path, lines, wanted)

        def columns(rows: list[list[str]], is_first: bool) -> Columns:
            return {name: [row[place] for row in rows] for name, place in places.items()}

        yield from _blocks(file, _rows(path, lines, width), size, columns)


def header_places(path: Path, lines: Any, wanted: Wanted | None) -> tuple[dict[str, int], int]:
    """Return each column's place, by the header that ``lines`` begin with, and the number of fields of a row.

    Raises DataError where there is no header, or it lacks a column.
    """
    header = next(_rows(path, lines, None), None)
    if header is None:
        raise DataError(f"{path}: the file is empty; its first line must name the columns, then one row a sample")
    return {name: header.index(name) for name in columns_to_read(path, header, wanted)}, len(header)


def _rows(path: Path, lines: Any, num_fields: int | None) -> Iterator[list[str]]:
    """Yield the rows that are not blank. Raises DataError where one has not ``num_fields`` fields, if that is given."""
    count = 0
    try:
        for row in lines:
            if num_fields is None:
                yield row
            elif row:
                count += 1
                if len(row) != num_fields:
                    raise DataError(
                        f"{path}, row {count} (line {lines.line_num}): {len(row)} fields where the header has "
                        f"{num_fields}: {str(row)[:120]}; correct or remove the row"
                    )
                yield row
    except csv.Error as error:
        raise DataError(f"{path}, line {lines.line_num}: {error}; correct or remove the row") from None


def _jsonl(path: Path, wanted: Wanted | None, size: int) -> Iterator[Block]:
    shown = wanted or {"text": "text"}
    texts = [column for option, column in shown.items() if "text" in option or "prompt" in option]
    example = json.dumps({column: "some text" if column in texts else 0 for column in shown.values()})

    def parsed(number: int, line: str) -> dict[str, Any]:
        try:
            row = decode_json(line)
        except ValueError as error:
            raise DataError(f"{path}, line {number}: not JSON ({error}); each line must be one object") from None
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number}: {line.strip()[:80]!r} is not an object like {example}")
        return row

    def columns(lines: list[tuple[int, str]], is_first: bool) -> Columns:
        rows = [parsed(number, line) for number, line in lines]
        names = list(dict.fromkeys(key for row in rows for key in row))
        if wanted is not None:
            names = columns_to_read(path, names, wanted) if is_first else list(wanted.values())
        return {name: [row.get(name) for row in rows] for name in names}

    is_empty = True
    with path.open(encoding="utf-8-sig") as file:
        lines = ((number, line) for number, line in enumerate(file, 1) if line.strip())
        for block in _blocks(file, lines, size, columns):
            is_empty = False
            yield block
    if is_empty:
        raise DataError(f"{path}: the file is empty; give one object like {example} a line")


def _parquet(path: Path, wanted: Wanted | None, size: int) -> Iterator[Block]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            names, total = columns_to_read(path, file.schema_arrow.names, wanted), file.metadata.num_rows
            size, done = min(size, total), 0
            read: list[pa.Table] = []
            for batch in file.iter_batches(columns=names, batch_size=min(size, 65_536)) if total else ():
                read.append(pa.Table.from_batches([batch]))
                while sum(map(len, read)) >= min(size, total - done) > 0:
                    table = pa.concat_tables(read)
                    block, read = table.slice(0, size), [table.slice(size)]
                    done += len(block)
                    yield len(block), done / total, partial(table_columns, block)
    except pa.ArrowInvalid as error:
        raise DataError(f"{path}: not a Parquet file ({error}); write it again, or rename it to what it is") from None


def table_columns(table: Any) -> Columns:
    """Return the columns of an Arrow table as lists."""
    return {name: table.column(name).to_pylist() for name in table.column_names}


# quotes are text in a TSV: read as quoting, one lone quote would swallow all rows up to the next
DIALECTS: dict[str, dict[str, Any]] = {
    ".tsv": {"delimiter": "\t", "quoting": csv.QUOTE_NONE},
    ".csv": {"delimiter": ",", "strict": True},
}
READERS: dict[str, Callable[[Path, Wanted | None, int], Iterator[Block]]] = {
    **{suffix: partial(_separated, **dialect) for suffix, dialect in DIALECTS.items()},
    ".jsonl": _jsonl,
    ".json": _jsonl,
    ".parquet": _parquet,
}
