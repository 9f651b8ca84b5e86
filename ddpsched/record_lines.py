"""JSON lines with a checksum each, so that no reader takes a damaged line for what was written.

The last key of a line is ``crc``, the CRC-32 of the line without it, in 8 hex digits::

    {"step": 0, "rank": 1, "loss": 0.69, "crc": "1c9b2b0e"}
"""

import zlib
from collections.abc import Iterator
from pathlib import Path

from ddpsched.errors import AGAIN, DataError

BEFORE, AFTER = ', "crc": "', '"}'
WIDTH = len(BEFORE) + 8 + len(AFTER)


def sealed(line: str) -> str:
    """Return a JSON object with its checksum as last key.

    >>> sealed('{"step": 0}')
    '{"step": 0, "crc": "239ca07c"}'
    """
    return f"{line[:-1]}{BEFORE}{zlib.crc32(line.encode()):08x}{AFTER}"


def read_sealed(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield each line's number, from 1, and the line without its checksum; an incomplete last line is left out.

    A file of an earlier version, in which no line has a checksum, is read without. Raises DataError that names file and
    line for a line that was changed, or has no checksum among others that do.
    """
    lines = path.read_bytes().split(b"\n")[:-1]
    has_sums = any(_sum(line) is not None for line in lines)
    for number, line in enumerate(lines, 1):
        place, body = f"{path}, line {number}", line
        if has_sums:
            if _sum(line) is None:
                raise DataError(f"{place}: it has no checksum, as other lines of this file do; {AGAIN}")
            if (whole := unsealed(line)) is None:
                raise DataError(f"{place}: it is not what was written (checksum); {AGAIN}")
            body = whole
        yield number, body


def unsealed(line: bytes) -> bytes | None:
    """Return a line without its checksum; None where it has none, or another one than it should.

    >>> unsealed(b'{"step": 0, "crc": "239ca07c"}')
    b'{"step": 0}'
    """
    found, body = _sum(line), line[:-WIDTH] + b"}"
    return body if found is not None and f"{zlib.crc32(body):08x}".encode() == found else None


def has_sum(line: bytes) -> bool:
    """Return whether a line has a checksum, right or wrong."""
    return _sum(line) is not None


def _sum(line: bytes) -> bytes | None:
    """Return the checksum at the end of a line; None where there is none."""
    end = line[-WIDTH:]
    return end[len(BEFORE) : -len(AFTER)] if end.startswith(BEFORE.encode()) and end.endswith(AFTER.encode()) else None
