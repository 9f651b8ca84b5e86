"""Records are read as they were written: each line has a checksum, and damage is named by file and line."""

import json
import math
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpsched.errors import DataError
from ddpsched.record_lines import sealed
from ddpsched.records import RECORDS, RecordWriter, StepRecord, compact, read_lines, write_all

RECORD: dict[str, Any] = {
    "run": "r", "mode": "virtual", "policy": "static", "seed": 0, "epoch": 0, "step": 0, "rank": 0, "world_size": 2,
    "num_samples": 4, "global_batch": 8, "num_tokens": 30, "padded_tokens": 40, "max_length": 10, "num_microbatches": 1,
    "loss_scale": 1.0, "compute_s": 0.25, "loss": math.nan,
}  # fmt: skip


def written(folder: Path, steps: int = 3) -> Path:
    with closing(RecordWriter(folder, 0)) as writer:
        for step in range(steps):
            writer.write(StepRecord(**RECORD | {"step": step}))
    return folder / "records-rank0.jsonl"


def put(folder: Path, *rows: dict[str, Any]) -> None:
    """Write rows with a right checksum, as a damaged run would not."""
    text = "".join(sealed(json.dumps(RECORD | row)) + "\n" for row in rows)
    (folder / "records-rank0.jsonl").write_text(text)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = written(tmp_path)
    rows = read_lines(tmp_path)
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert math.isnan(rows[0]["loss"])
    assert rows[0]["compute_s"] == 0.25
    assert "crc" not in rows[0]
    assert [*json.loads(path.read_text().splitlines()[0])][-1] == "crc"
    with path.open("ab") as file:
        file.write(b'{"run": "r", "mo')  # killed while writing
    assert len(read_lines(tmp_path)) == 3


@settings(max_examples=60, deadline=None)
@given(place=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_any_flipped_bit_is_found(tmp_path_factory: pytest.TempPathFactory, place: int, bit: int) -> None:
    folder = tmp_path_factory.mktemp("records")
    path = written(folder)
    data = bytearray(path.read_bytes())
    place %= len(data) - 1  # but for the last newline, without which the last line is incomplete
    number = data.count(b"\n", 0, place) + 1
    data[place] ^= 1 << bit
    path.write_bytes(data)
    with pytest.raises(DataError, match=rf"records-rank0\.jsonl, line {number}: .*checksum"):
        read_lines(folder)


def test_a_line_of_another_step_is_no_other_lines(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_text(path.read_text().replace('"step": 1', '"step": 7'))
    with pytest.raises(DataError, match="line 2: it is not what was written"):
        read_lines(tmp_path)


def test_earlier_versions_wrote_no_checksums(tmp_path: Path) -> None:
    path = tmp_path / "records-rank0.jsonl"
    path.write_text("".join(json.dumps(RECORD | {"step": step}) + "\n" for step in range(2)))
    assert len(read_lines(tmp_path)) == 2
    with path.open("a") as file:
        file.write(sealed(json.dumps(RECORD | {"step": 2})) + "\n")
    with pytest.raises(DataError, match="line 1: it has no checksum, as other lines"):
        read_lines(tmp_path)


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({"seed": "0"}, "seed = '0': input should be a valid integer"),
        ({"stepp": 1}, "stepp = 1: "),
        ({"compute_s": math.nan}, "compute_s = nan: must be finite"),
        ({"step_s": math.inf}, "step_s = inf: must be finite"),
        ({"compute_s": -1.0}, "compute_s = -1.0: must be at least 0"),
        ({"num_tokens": -5}, "num_tokens = -5: must be at least 0"),
        ({"num_tokens": 10**30}, "num_tokens = 1000000000000000000000000000000: must be below"),
        ({"rank": 2}, "rank = 2: must be below world_size = 2"),
        ({"policy": [[[]]]}, "policy = "),
    ],
)
def test_rows_that_no_run_writes(tmp_path: Path, row: dict[str, Any], fault: str) -> None:
    put(tmp_path, {}, row)
    with pytest.raises(DataError, match=rf"records-rank0\.jsonl, line 2: {fault}"):
        read_lines(tmp_path)


@pytest.mark.parametrize("line", ["[" * 100_000, "[]", "", "null", '{"seed": ' + "1" * 5000 + "}", "{}"])
def test_lines_that_are_no_record(tmp_path: Path, line: str) -> None:
    (tmp_path / "records-rank0.jsonl").write_text(line + "\n")
    with pytest.raises(DataError, match=r"records-rank0\.jsonl, line 1: ") as caught:
        read_lines(tmp_path)
    assert len(str(caught.value)) < 600


def test_pages_of_the_parquet_file_have_checksums(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    written(tmp_path)
    assert compact(tmp_path) == len({each["step"] for each in read_lines(tmp_path)})
    path = tmp_path / RECORDS
    data = bytearray(path.read_bytes())
    value = data.index(b"static")
    data[value] ^= 1
    path.write_bytes(data)
    with pytest.raises(OSError, match="CRC"):
        pq.read_table(path, page_checksum_verification=True)


def test_several_files_are_written_all_or_none(tmp_path: Path) -> None:
    old, new = tmp_path / "old.md", tmp_path / "new.html"
    write_all({old: b"before"})
    with pytest.raises(OSError, match="no folder"):
        write_all({old: b"after", new: b"page", tmp_path / "no folder" / "a.pdf": b""})
    assert (old.read_bytes(), list(tmp_path.iterdir())) == (b"before", [old])
    write_all({old: b"after", new: b"page"})
    assert (old.read_bytes(), new.read_bytes()) == (b"after", b"page")
