"""Rows of a data file that cannot be used, left out of the data set and named: ``data.on_bad = "skip"``.

A file is read row by row, and goes on after a row that cannot be decoded, lacks a column or holds a value that no
sample has. A file that is bad for the most part is no data set, and is refused.
"""

import csv
import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ddpsched.data.table_files import DIALECTS, WHOLE, Wanted, header_places, opened, read_chunks
from ddpsched.decode import decode_json
from ddpsched.errors import DataError
from ddpsched.visible_text import visible

QUARANTINE = "quarantine.jsonl"
LONGEST_LINE = 2**24  # characters
LONGEST_REASON = 200
LOGGED = 10  # rows that a log names; the file names all
CHUNK = 65_536  # rows of a Parquet file at a time

Row = dict[str, Any]
log = logging.getLogger("ddpsched")


@dataclass(frozen=True)
class BadRow:
    """A row that was left out: ``row`` counts rows from 1 below a header, ``line`` lines of the file."""

    file: str
    line: int
    row: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}: {self.reason}"


@dataclass(frozen=True)
class Read:
    """A row as it was read: its columns, or why they cannot be; ``num_lines`` of the file from ``line`` on."""

    line: int
    num_lines: int
    columns: Row | str


def read_usable(
    path: Path, wanted: Wanted, fault: Callable[[Row], str | None], limit: int | None = None
) -> tuple[list[Row], list[int], list[BadRow]]:
    """Return the rows of a file that can be used, the number of each, and the others.

    ``fault``: why the columns of a row cannot be used, or None. ``limit``: only so many rows are read, the first.
    Raises DataError where the file cannot be read, lacks a column, or more than half of it cannot be used.
    """
    good: list[Row] = []
    numbers: list[int] = []
    bad: list[BadRow] = []
    num_lines = bad_lines = 0
    with opened(path):
        for number, read in enumerate(_rows(path, wanted), 1):
            num_lines += read.num_lines
            columns = read.columns
            reason = columns if isinstance(columns, str) else fault(columns)
            if reason is not None:
                bad_lines += read.num_lines
                bad.append(BadRow(str(path), read.line, number, visible(reason, LONGEST_REASON)))
            elif isinstance(columns, dict):
                good.append(columns)
                numbers.append(number)
            if number == (limit or WHOLE):
                break
    if 2 * bad_lines > num_lines:
        named = "; ".join(f"line {row.line}: {row.reason}" for row in bad[:3])
        remedy = "data.on_bad = 'skip' is for files of which at most half is bad: correct the file, or the columns"
        raise DataError(f"{path}: {bad_lines} of {num_lines} lines cannot be used ({named}); {remedy}")
    return good, numbers, bad


def write_quarantine(folder: Path, rows: Sequence[BadRow]) -> None:
    """Write ``quarantine.jsonl`` into a run's folder, a line for each row, and name the first in the log."""
    text = "".join(json.dumps(asdict(row)) + "\n" for row in rows)
    (folder / QUARANTINE).write_text(text, encoding="utf-8")
    for row in rows[:LOGGED]:
        log.warning("left out: %s", row)
    if rows:
        log.warning("%d rows of the data files were left out; %s names all", len(rows), QUARANTINE)


def _rows(path: Path, wanted: Wanted) -> Iterator[Read]:
    kind = path.suffix.lower()
    if kind in DIALECTS:
        yield from _separated(path, wanted, DIALECTS[kind])
    elif kind in (".jsonl", ".json"):
        yield from _json_lines(path, wanted)
    else:
        for chunk in read_chunks(path, wanted, CHUNK):
            for place in range(chunk.num_rows):
                row = {name: values[place] for name, values in chunk.columns.items()}
                yield Read(chunk.first + place + 1, 1, row)


def _separated(path: Path, wanted: Wanted, dialect: dict[str, Any]) -> Iterator[Read]:
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        lines = csv.reader(file, **dialect)
        places, width = header_places(path, lines, wanted)
        while True:
            before = lines.line_num
            columns: Row | str
            try:
                row = next(lines)
            except StopIteration:
                return
            except csv.Error as error:
                columns = str(error)
            else:
                if not row:
                    continue
                columns = {name: row[place] for name, place in places.items()} if len(row) == width else ""
                columns = columns or f"{len(row)} fields where the header has {width}"
                columns = _fault("\t".join(row)) or columns
            yield Read(before + 1, lines.line_num - before, columns)


def _json_lines(path: Path, wanted: Wanted) -> Iterator[Read]:
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield Read(number, 1, _fault(line) or _json_row(line, wanted))


def _json_row(line: str, wanted: Wanted) -> Row | str:
    try:
        row = decode_json(line)
    except ValueError as error:
        return f"not JSON ({error})"
    if not isinstance(row, dict):
        return "not an object"
    absent = next((name for name in wanted.values() if name not in row), None)
    return {name: row[name] for name in wanted.values()} if absent is None else f"no column {absent!r}"


def _fault(line: str) -> str | None:
    """Return why no line of a text file is like this; None where it may be one."""
    if len(line) > LONGEST_LINE:
        return f"{len(line):,} characters, at most {LONGEST_LINE:,} are read"
    if "\0" in line:
        return "it has a NUL character"
    return "not UTF-8 text" if re.search("[\ud800-\udfff]", line) else None
