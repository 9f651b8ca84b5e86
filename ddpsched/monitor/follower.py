"""The records of a run, read while its ranks write them; lines that are no records are left out and counted."""

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pydantic import ValidationError

from ddpsched.record_lines import has_sum, unsealed
from ddpsched.records import SCHEMA, StepRecord, unlikely
from ddpsched.regular_file import check_regular
from ddpsched.table import first_fault

MOST_AT_ONCE = 2**24  # bytes of a file that are read at a time
_RANK = re.compile(r"records-rank(\d+)\.jsonl")


@dataclass
class _Place:
    """The place in a file up to which it was read."""

    inode: int
    offset: int = 0
    lines: int = 0


class Follower:
    """A reader of ``records-rank*.jsonl`` in ``folder``, from where it was last time.

    ``tail``: bytes at the end of each file that the first look begins with; None: all of it.
    ``num_left_out`` counts lines that are no records of this version, and ``first_left_out`` says which was the first,
    and why. ``num_restarts`` counts the times that files were begun anew.
    """

    def __init__(self, folder: Path, tail: int | None = None) -> None:
        self._folder, self._tail = folder, tail
        self._places: dict[Path, _Place] = {}
        self.num_left_out, self.first_left_out, self.num_restarts = 0, "", 0
        self._num_read = 0  # bytes, of all files

    def pass_over(self) -> None:
        """Leave out what is there by now."""
        for path in self._paths():
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
            self._places[path] = _Place(status.st_ino, status.st_size)

    def silent_s(self) -> float:
        """Return the seconds since something was written into one of the files, by their dates; 0 without any file."""
        written = [path.stat().st_mtime for path in self._paths()]
        return max(0.0, time.time() - max(written)) if written else 0.0

    def read(self, ended: bool = False) -> list[StepRecord]:
        """Return the records since the last time, file by file; no more than ``MOST_AT_ONCE`` bytes of each.

        A line that its rank is still writing is returned next time; where the run has ``ended``, one that is cut off
        is left out. Raises OSError, and DataError for a device or pipe.
        """
        return [record for path in self._paths() for record in self._read(path, ended)]

    def read_all(self, ended: bool = False) -> Iterator[list[StepRecord]]:
        """Yield the records since the last time, piece by piece as ``read`` returns them, up to the end of the files.

        A piece is empty where all its lines are left out.
        """
        while True:
            before, records = self._num_read, self.read(ended)
            if self._num_read == before:
                return
            yield records

    def _paths(self) -> list[Path]:
        found = [(int(match[1]), path) for path in self._folder.iterdir() if (match := _RANK.fullmatch(path.name))]
        return [path for _, path in sorted(found)]

    def _read(self, path: Path, ended: bool) -> list[StepRecord]:
        check_regular(path)
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            place = self._places.get(path)
            if place is None:
                place = _Place(status.st_ino)
                if self._tail is not None:
                    _begin_late(file, place, status.st_size - self._tail)
            elif status.st_ino != place.inode or status.st_size < place.offset:
                place = _Place(status.st_ino)
                self.num_restarts += 1
            self._places[path] = place
            file.seek(place.offset)
            text = file.read(MOST_AT_ONCE)
        end = text.rfind(b"\n") + 1
        if not end and len(text) == MOST_AT_ONCE:  # no record is as long
            end = len(text)
        self._advance(place, end)
        records = []
        for line in text[:end].splitlines():
            place.lines += 1
            found = _parsed(line)
            if isinstance(found, StepRecord):
                records.append(found)
            else:
                self._leave_out(path, place, found)
        if ended and end < len(text) < MOST_AT_ONCE:
            self._advance(place, len(text) - end)
            place.lines += 1
            self._leave_out(path, place, "it ends in the middle")
        return records

    def _advance(self, place: _Place, count: int) -> None:
        place.offset += count
        self._num_read += count

    def _leave_out(self, path: Path, place: _Place, fault: str) -> None:
        self.num_left_out += 1
        self.first_left_out = self.first_left_out or f"{path.name}, line {place.lines:,}: {fault}"


def _begin_late(file: BinaryIO, place: _Place, first: int) -> None:
    """Set a place to the first line that begins after so many bytes, and count the lines before it."""
    left = first
    while left > 0:
        text = file.read(min(left, MOST_AT_ONCE))
        if not text:
            break
        left -= len(text)
        place.lines += text.count(b"\n")
    if first > 0:
        file.readline()
        place.lines += 1
        place.offset = file.tell()


def _parsed(line: bytes) -> StepRecord | str:
    """Return the record of a line, or why it is none."""
    body = line
    if has_sum(line):
        whole = unsealed(line)
        if whole is None:
            return "it is not what was written (checksum)"
        body = whole
    try:
        record: StepRecord = SCHEMA.validate_json(body)
    except ValidationError as error:
        return first_fault(error)
    return unlikely(vars(record)) or record
