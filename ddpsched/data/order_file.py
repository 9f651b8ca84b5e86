"""An order on disk: one ``.npy`` file of sorted rows that no process holds as a whole.

The array is as ``numpy.save`` writes one of named columns, so ``numpy.load(path, mmap_mode="r")`` reads it. A footer
after it holds the data set's fingerprint and a checksum of every block of rows. Writers fill a file beside the final
one, each rank its share of the rows, and rename it when all of it is on disk.
"""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ddpsched.data.array_cache import sync
from ddpsched.errors import DataError
from ddpsched.regular_file import check_regular

BLOCK = 65_536  # rows of one checksum
PIECE = 16 * BLOCK  # rows written at a time
PREFIX = np.lib.format.magic(3, 0)
MAGIC = b"ddpsORD1"
Bits = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class About:
    """The contents of an ordered file.

    ``metrics``: names of its columns, which ids follow. ``data``: the data set's fingerprint. ``source``: its name.
    ``how``: free text on how the metrics were measured.
    """

    metrics: tuple[str, ...]
    data: str
    source: str
    how: str = ""


class OrderedWriter:
    """A writer of ``num_rows`` rows to ``path``, of which every rank writes its share.

    One rank calls ``begin``, then all call ``write``, then that one ``finish`` with all ranks' sums added up; or
    ``drop``. Until ``finish`` nothing changes at ``path``.
    """

    def __init__(self, path: Path, num_rows: int, dtypes: Sequence[np.dtype[Any]], about: About) -> None:
        self.path = path.resolve()  # the target of a link
        self.aside = self.path.with_name(f".{path.name}.part")
        self._num_rows, self._about = num_rows, about
        self._dtype = np.dtype([(name, dtype) for name, dtype in zip((*about.metrics, "id"), dtypes, strict=True)])
        self._header = _header(self._dtype, num_rows)
        self.num_blocks = -(-num_rows // BLOCK)  # each has a checksum

    def begin(self) -> None:
        """Allocate the file. Raises OSError where the disk has no room."""
        with self.aside.open("wb") as file:
            file.write(self._header)
            size = len(self._header) + self._num_rows * self._dtype.itemsize
            if self._num_rows and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk fails here, not after the sort
            sync(file)

    def write(self, start: int, columns: Sequence[npt.NDArray[Any]]) -> Bits:
        """Write rows from ``start`` on; return their share of the sums of all blocks, (num_blocks,)."""
        sums = np.zeros(self.num_blocks, dtype=np.uint64)
        with self.aside.open("r+b") as file:
            file.seek(len(self._header) + start * self._dtype.itemsize)
            for first in range(0, len(columns[0]), PIECE):
                rows = np.rec.fromarrays([column[first : first + PIECE] for column in columns], dtype=self._dtype)
                file.write(rows.tobytes())
                _add_sums(sums, rows, start + first)
            sync(file)
        return sums

    def finish(self, sums: Bits) -> str:
        """Write the footer and rename the file; return what :attr:`OrderedFile.digest` will be."""
        about = asdict(self._about) | {"num_rows": self._num_rows, "sums": [f"{value:016x}" for value in sums.tolist()]}
        words = json.dumps(about, sort_keys=True).encode()
        digest = _digest(self._header, words)
        with self.aside.open("r+b") as file:
            file.seek(0, os.SEEK_END)
            file.write(words + digest + len(words).to_bytes(8, "little") + MAGIC)
            sync(file)
        self.aside.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return digest.hex()

    def drop(self) -> None:
        """Remove the unfinished file, if there is one."""
        with suppress(OSError):
            self.aside.unlink(missing_ok=True)


class OrderedFile:
    """The rows of a file that an :class:`OrderedWriter` wrote, read in any slice.

    Raises DataError for another kind of file, and for one that is cut short or was changed: every block is checked when
    it is read.
    """

    def __init__(self, path: Path, about: About, digest: str, num_rows: int, sums: Sequence[int]) -> None:
        self.path, self.about, self.digest = path, about, digest
        self._sums = np.array(sums, dtype=np.uint64)
        self._rows: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        if self._rows.dtype.names != (*about.metrics, "id") or self._rows.shape != (num_rows,):
            raise DataError(f"{path}: its header and footer differ; write it again with `ddpsched sort`")
        types = [self._rows.dtype[name] for name in self._rows.dtype.names]
        if types[-1] != np.int64 or any(each not in (np.int64, np.float64) for each in types):
            fault = f"its columns are {', '.join(map(str, types))}, where ids are int64 and metrics int64 or float64"
            raise DataError(f"{path}: {fault}; write it again with `ddpsched sort`")
        if len(self._sums) != (blocks := -(-num_rows // BLOCK)):
            fault = f"it has {len(self._sums)} checksums for {blocks} blocks of rows"
            raise DataError(f"{path}: {fault}; write it again with `ddpsched sort`")

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read header and footer. Raises DataError where they are missing or damaged."""
        try:
            footer, digest = _footer(path)
            about = About(tuple(footer["metrics"]), footer["data"], footer["source"], footer["how"])
            return cls(path, about, digest, footer["num_rows"], [int(value, 16) for value in footer["sums"]])
        except FileNotFoundError:
            raise DataError(f"{path}: no such file; `ddpsched sort DATA --output {path}` writes it") from None
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
        except (ValueError, KeyError, TypeError, EOFError) as error:
            raise DataError(
                f"{path}: not a whole ordered file ({error}); write it again with `ddpsched sort`"
            ) from None

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self, start: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
        """Return rows ``start`` to ``stop``, copied, with a field for each metric and ``id``; DataError if changed."""
        start, stop, _ = slice(start, stop).indices(len(self))
        if start >= stop:
            return np.array(self._rows[:0])
        first = start // BLOCK * BLOCK
        read = np.array(self._rows[first : -(-stop // BLOCK) * BLOCK])
        sums = np.zeros_like(self._sums)
        _add_sums(sums, read, first)
        blocks = np.arange(first // BLOCK, -(-stop // BLOCK))
        wrong = blocks[sums[blocks] != self._sums[blocks]]
        if len(wrong):
            block = int(wrong[0])
            raise DataError(
                f"{self.path}: rows {block * BLOCK} to {min((block + 1) * BLOCK, len(self))} are not those that were "
                "written (checksum); write it again with `ddpsched sort`"
            )
        return read[start - first : stop - first]

    def ids(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.int64]:
        """Return the ids of rows ``start`` to ``stop``, int64."""
        return np.ascontiguousarray(self.rows(start, stop)["id"])


def _header(dtype: np.dtype[Any], num_rows: int) -> bytes:
    """Return the header that numpy.save writes for column names beyond Latin-1."""
    words = repr({"descr": dtype.descr, "fortran_order": False, "shape": (num_rows,)}).encode()
    padding = -(len(PREFIX) + 4 + len(words) + 1) % 64
    return PREFIX + (len(words) + padding + 1).to_bytes(4, "little") + words + b" " * padding + b"\n"


def _footer(path: Path) -> tuple[dict[str, Any], str]:
    tail = 8 + len(MAGIC)
    check_regular(path)
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - tail))
        end = file.read()
        if not end.endswith(MAGIC):
            raise ValueError("its end is missing, or it is another file")
        length = int.from_bytes(end[:8], "little")
        begin = size - tail - 16 - length
        if begin < 0:
            raise ValueError("its footer is longer than itself")
        file.seek(begin)
        words, digest = file.read(length), file.read(16)
        file.seek(0)
        header = file.read(len(PREFIX) + 4)
        header += file.read(int.from_bytes(header[-4:], "little"))  # parsed only once its digest is checked
    if _digest(header, words) != digest:
        raise ValueError("its footer was changed")
    return json.loads(words), digest.hex()


def _digest(header: bytes, words: bytes) -> bytes:
    return blake2b(header + words, digest_size=16).digest()


def _add_sums(sums: Bits, rows: npt.NDArray[Any], first: int) -> None:
    """Add each row's hash to its block's sum, so that parts of a sum add up whichever rank wrote which rows."""
    stop = first + len(rows)
    for block in range(first // BLOCK, -(-stop // BLOCK)):
        begin, end = max(first, block * BLOCK), min(stop, (block + 1) * BLOCK)
        hashed = _mixed(np.arange(begin, end, dtype=np.uint64))
        for name in rows.dtype.names or ():
            hashed = _mixed(hashed ^ np.ascontiguousarray(rows[name][begin - first : end - first]).view(np.uint64))
        sums[block] += hashed.sum(dtype=np.uint64)


def _mixed(bits: Bits) -> Bits:
    """Return splitmix64's step, in which every bit flips half of the hash's bits (Steele, Lea and Flood 2014)."""
    bits = bits + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
