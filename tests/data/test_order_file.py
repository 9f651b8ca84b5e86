"""The ordered file: ranks write one array in pieces, any slice is read alone, and altered files are refused."""

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddpsched.data.order_file import BLOCK, About, OrderedFile, OrderedWriter
from ddpsched.errors import DataError

ABOUT = About(("length", "column:score"), "file abc", "train.tsv", "tokenizer")
SIZE = 2 * BLOCK + 1000


def columns_of(size: int = SIZE) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [np.sort(rng.integers(1, 500, size)), rng.random(size), rng.permutation(size)]


def write(path: Path, world_size: int = 1, columns: list[np.ndarray] | None = None, about: About = ABOUT) -> str:
    """Write the file as ``world_size`` ranks would, a slice each, the last one first."""
    columns = columns_of() if columns is None else columns
    size = len(columns[0])
    writer = OrderedWriter(path, size, [column.dtype for column in columns], about)
    writer.begin()
    sums = np.zeros(writer.num_blocks, dtype=np.uint64)
    for rank in reversed(range(world_size)):
        start, stop = rank * size // world_size, (rank + 1) * size // world_size
        sums += writer.write(start, [column[start:stop] for column in columns])
    return writer.finish(sums)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_one_file_whoever_writes_it(tmp_path: Path, world_size: int) -> None:
    alone = write(tmp_path / "alone.npy")
    assert write(tmp_path / "order.npy", world_size) == alone
    assert (tmp_path / "order.npy").read_bytes() == (tmp_path / "alone.npy").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone.npy", "order.npy"]


def test_numpy_reads_it(tmp_path: Path) -> None:
    write(tmp_path / "order.npy", 2)
    for mode in ("r", None):
        found = np.load(tmp_path / "order.npy", mmap_mode=mode)  # type: ignore[arg-type]
        assert found.dtype.names == ("length", "column:score", "id")
        for name, column in zip(found.dtype.names, columns_of(), strict=True):
            np.testing.assert_array_equal(found[name], column)


def test_slices(tmp_path: Path) -> None:
    digest = write(tmp_path / "order.npy", 3)
    file, columns = OrderedFile.open(tmp_path / "order.npy"), columns_of()
    assert (len(file), file.about, file.digest) == (SIZE, ABOUT, digest)
    for start, stop in ((0, SIZE), (5, 6), (BLOCK - 1, BLOCK + 1), (2 * BLOCK, SIZE), (7, 7), (-3, None), (0, 10**9)):
        rows = file.rows(start, stop)
        for name, column in zip(rows.dtype.names or (), columns, strict=True):
            np.testing.assert_array_equal(rows[name], column[start:stop])
    np.testing.assert_array_equal(file.ids(10, 20), columns[2][10:20])


def test_a_slice_reads_no_other_block(tmp_path: Path) -> None:
    """A changed byte is noticed only by slices of its block, whichever column it is in."""
    path = tmp_path / "order.npy"
    write(path)
    whole = path.read_bytes()
    header = whole.index(b"\n") + 1  # numpy ends its header so
    for offset in (0, 8, 16, 24 * (BLOCK - 1)):
        changed = bytearray(whole)
        changed[header + offset] ^= 1
        path.write_bytes(changed)
        file = OrderedFile.open(path)
        file.rows(BLOCK, 2 * BLOCK)
        with pytest.raises(DataError, match=f"rows 0 to {BLOCK} are not those that were written"):
            file.rows(1, 2)


def test_rows_that_changed_places_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "order.npy"
    write(path)
    rows = np.load(path, mmap_mode="r+")
    rows[[0, 1]] = rows[[1, 0]]
    rows.flush()
    with pytest.raises(DataError, match="checksum"):
        OrderedFile.open(path).ids()


@pytest.mark.parametrize("kept", [0, 5, 1000, -1, -30, -200])
def test_a_file_cut_short(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "order.npy"
    write(path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DataError, match=r"not a whole ordered file.*write it again"):
        OrderedFile.open(path)


def test_files_that_are_none(tmp_path: Path) -> None:
    np.save(tmp_path / "plain.npy", np.arange(5))
    with pytest.raises(DataError, match="its end is missing, or it is another file"):
        OrderedFile.open(tmp_path / "plain.npy")
    with pytest.raises(DataError, match="no such file; `ddpsched sort DATA"):
        OrderedFile.open(tmp_path / "none.npy")
    with pytest.raises(DataError, match="cannot be read"):
        OrderedFile.open(tmp_path)
    path = tmp_path / "order.npy"
    write(path)
    whole = bytearray(path.read_bytes())
    place = whole.rindex(b"file abc")
    whole[place] ^= 1  # the fingerprint of other data
    path.write_bytes(whole)
    with pytest.raises(DataError, match="its footer was changed"):
        OrderedFile.open(path)


def test_names_in_any_script(tmp_path: Path) -> None:
    path, columns = tmp_path / "order.npy", columns_of(100)
    write(path, 1, columns, About(("length", "column:难度"), "file x", "data"))
    np.testing.assert_array_equal(OrderedFile.open(path).rows()["column:难度"], columns[1])
    assert np.load(path).dtype.names == ("length", "column:难度", "id")


def test_every_bit_of_header_and_footer_counts(tmp_path: Path) -> None:
    """A flipped bit raises a DataError, wherever it is."""
    path = tmp_path / "order.npy"
    write(path, 1, columns_of(10))
    whole = path.read_bytes()
    for place in [*range(200), *range(len(whole) - 300, len(whole))]:
        changed = bytearray(whole)
        changed[place] ^= 1 << (place % 8)
        path.write_bytes(changed)
        with pytest.raises(DataError):
            OrderedFile.open(path).rows()


def test_a_link_leads_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "order.npy").symlink_to(tmp_path / "real" / "order.npy")
    write(tmp_path / "order.npy", 1, columns_of(10))
    assert (tmp_path / "order.npy").is_symlink()
    assert len(OrderedFile.open(tmp_path / "real" / "order.npy")) == 10


def test_an_empty_order(tmp_path: Path) -> None:
    write(tmp_path / "order.npy", 2, columns_of(0))
    assert len(OrderedFile.open(tmp_path / "order.npy").ids()) == 0


@pytest.mark.parametrize("step", ["begin", "write", "finish"])
def test_a_full_disk_leaves_the_old_file(tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No partial file has the final name, and nothing is left beside it once the writer is dropped."""
    path = tmp_path / "order.npy"
    write(path)
    old = path.read_bytes()
    columns = [column[:100] for column in columns_of()]
    writer = OrderedWriter(path, 100, [column.dtype for column in columns], ABOUT)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def all_of_it() -> None:
        for name in ("begin", "write", "finish"):
            if name == step:
                monkeypatch.setattr(os, "fsync", full)
            if name == "begin":
                writer.begin()
            elif name == "write":
                sums = writer.write(0, columns)
            else:
                writer.finish(sums)

    with pytest.raises(OSError, match="No space left"):
        all_of_it()
    assert path.read_bytes() == old
    writer.drop()
    assert [each.name for each in tmp_path.iterdir()] == ["order.npy"]
