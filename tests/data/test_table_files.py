"""Files read in chunks of rows give the same rows as in one piece, whichever chunks are requested."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ddpsched.config import parse
from ddpsched.data.row_source import number_rows, training_rows
from ddpsched.data.table_files import READERS, read_chunks, read_columns
from ddpsched.errors import DataError

ROWS = [{"text": f"a, {i} film", "score": i, "other": -i} for i in range(23)]


def write(folder: Path, suffix: str, rows: list[dict[str, Any]] | None = None) -> Path:
    path, table = folder / f"train{suffix}", pd.DataFrame(ROWS if rows is None else rows)
    if suffix == ".parquet":
        table.to_parquet(path, row_group_size=5)
    elif suffix in (".json", ".jsonl"):
        path.write_text("".join(json.dumps(row) + "\n\n" for row in table.to_dict("records")))
    else:
        table.to_csv(path, index=False, sep="\t" if suffix == ".tsv" else ",")
    return path


@pytest.mark.parametrize("size", [1, 5, 7, 23, 100])
@pytest.mark.parametrize("suffix", READERS)
def test_chunks_are_the_file(tmp_path: Path, suffix: str, size: int) -> None:
    path, wanted = write(tmp_path, suffix), {"--text": "text", "--column": "score"}
    whole = read_columns(path, wanted)
    assert [int(score) for score in whole["score"]] == list(range(23))
    chunks = list(read_chunks(path, wanted, size))
    assert [chunk.number for chunk in chunks] == list(range(len(chunks)))
    assert [chunk.first for chunk in chunks] == list(range(0, 23, size))
    assert [chunk.num_rows for chunk in chunks] == [min(size, 23 - chunk.first) for chunk in chunks]
    for name, values in whole.items():
        assert sum((chunk.columns[name] for chunk in chunks), []) == values  # noqa: RUF017
    shares = [chunk.share for chunk in chunks]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    kept = list(read_chunks(path, wanted, size, lambda number: number % 3 == 1))
    for chunk, all_of_it in zip(kept, chunks, strict=True):
        assert chunk.columns == (all_of_it.columns if chunk.number % 3 == 1 else {key: [] for key in wanted.values()})
        assert (chunk.first, chunk.num_rows) == (all_of_it.first, all_of_it.num_rows)


@pytest.mark.parametrize("suffix", READERS)
def test_all_columns(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path, suffix)
    for chunk in read_chunks(path, None, 10):
        assert list(chunk.columns) == ["text", "score", "other"]
        assert chunk.columns["text"] == [row["text"] for row in ROWS[chunk.first : chunk.first + chunk.num_rows]]


@pytest.mark.parametrize("suffix", READERS)
def test_a_chunks_missing_column(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path, suffix)
    with pytest.raises(DataError, match=r"no column 'scoer'.*did you mean --column=score"):
        list(read_chunks(path, {"--column": "scoer"}, 5))


def test_faults_of_later_chunks(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_text("text\tscore\na\t1\nb\t2\nc\n")
    chunks = read_chunks(path, {"--text": "text"}, 1)
    assert next(chunks).columns == {"text": ["a"]}
    with pytest.raises(DataError, match=r"row 3 .*1 fields where the header has 2"):
        list(chunks)


def test_fingerprints_tell_data_apart(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")

    def of(path: Path) -> str:
        rows = training_rows(parse({"steps": 1, "data": {"path": str(path)}}).data)
        assert rows is not None
        return rows.fingerprint()

    first = of(write(tmp_path, ".tsv"))
    assert of(tmp_path) == first, "a folder means its train file"
    assert of(write(tmp_path, ".tsv", [*ROWS[1:], ROWS[0]])) != first
    for name, rows in (("saved", ROWS), ("other", ROWS[1:])):
        datasets.Dataset.from_list(rows).save_to_disk(tmp_path / name)
    assert of(tmp_path / "saved") == of(tmp_path / "saved") != of(tmp_path / "other")
    assert training_rows(parse({"steps": 1}).data) is None


def test_a_saved_set_in_chunks(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)}).save_to_disk(tmp_path / "saved")
    rows = training_rows(parse({"steps": 1, "data": {"path": str(tmp_path / "saved")}}).data)
    assert rows is not None
    chunks = list(rows.chunks({"--column": "score"}, 10, lambda number: number != 1))
    assert [chunk.columns["score"] for chunk in chunks] == [list(range(10)), [], [20, 21, 22]]
    assert list(next(rows.chunks(None, 5, lambda number: True)).columns) == ["text", "score", "other"]


@pytest.mark.parametrize("suffix", [".npy", ".txt"])
def test_numbers_in_chunks(tmp_path: Path, suffix: str) -> None:
    path, values = tmp_path / f"lengths{suffix}", np.arange(23) * 2
    np.save(path, values) if suffix == ".npy" else path.write_text("\n".join(map(str, values)))
    chunks = list(number_rows(path).chunks(None, 10, lambda number: True))
    assert [int(value) for chunk in chunks for value in chunk.columns["value"]] == values.tolist()


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".parquet"])
def test_a_column_name_that_is_there_twice(tmp_path: Path, suffix: str) -> None:
    path, mark = tmp_path / f"train{suffix}", "\t" if suffix == ".tsv" else ","
    if suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], ["a", "b", "a"]), path)
    else:
        path.write_text(f"a{mark}b{mark}a\n1{mark}2{mark}3\n")
    assert [int(value) for value in read_columns(path, {"--text": "b"})["b"]] == [2]
    for wanted in ({"--text": "a"}, None):
        with pytest.raises(DataError, match=r"more than one column is named 'a'; give each a name of its own"):
            list(read_chunks(path, wanted))


@pytest.mark.parametrize("line", ["[" * 100_000, '{"a": ' + "1" * 5000 + "}", '{"a": ' * 100_000])
def test_json_lines_that_no_decoder_reads(tmp_path: Path, line: str) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text('{"a": 1}\n' + line + "\n")
    with pytest.raises(DataError, match=r"train\.jsonl, line 2: not JSON"):
        read_columns(path, {"--text": "a"})
