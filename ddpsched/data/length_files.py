"""The lengths of a data set on the disk: a file of numbers, a tokenised data set, or texts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddpsched.data.column_lengths import (
    MASK,
    arrow_lengths,
    arrow_real_tokens,
    find_column,
    numbers,
    refuse_nested,
    text_lengths,
    value_lengths,
)
from ddpsched.data.row_source import NUMBERS, load_saved, locate, read_numbers
from ddpsched.data.table_files import READERS, columns_to_read, opened, read_chunks, read_columns
from ddpsched.data.tokenizer import Ids
from ddpsched.errors import DataError

ROWS = 65_536  # of an Arrow table at a time


def read_lengths(
    path: Path,
    column: str | None = None,
    texts: Sequence[str] = (),
    tokenizer: Any = None,
    prompt: str | None = None,
) -> Ids:
    """Return the tokens of each sample, int64 (N,).

    ``path``: a flat ``.npy`` array, a ``.txt`` with one number a line, a CSV, TSV, JSON-lines or Parquet file, or a
    folder that ``save_to_disk`` of ``datasets`` wrote. ``column`` of it holds the numbers, or lists of token ids, which
    are counted; without it "input_ids", "length" or "lengths". With ``texts``, columns of such a file, each row's texts
    are joined by a newline and counted by ``tokenizer`` (a folder, a hub name or a tokenizer), uncut and with special
    tokens. ``prompt``, another column, is counted with them as a pair, as in a run with ``data.prompt``: with BERT's,
    one [SEP] more. Raises DataError where a length is not a whole number of at least 1, naming the row.
    """
    if texts:
        return _count(locate(path) if path.is_dir() else path, texts, tokenizer, prompt)
    if prompt is not None:
        raise DataError(f"a prompt is named ({prompt}), but no column of texts behind it; name it with --text")
    if tokenizer is not None:
        raise DataError(
            "a tokenizer is given, but no column of texts to count; name it (--text NAME, or column=NAME in Python)"
        )
    if path.suffix.lower() in NUMBERS:
        return numbers(path, read_numbers(path))
    path = locate(path) if path.is_dir() else path
    return arrow_dataset_lengths(path, load_saved(path), column) if path.is_dir() else _column(path, column)


def arrow_dataset_lengths(place: object, dataset: Any, column: str | None, tokenizer: Any = None) -> Ids:
    """Return the tokens of each sample of a data set of ``datasets``, int64 (N,), from its Arrow column.

    ``column``, ``tokenizer``: as of ``ddpsched.lengths``. Raises DataError where there are several splits.
    """
    if isinstance(dataset, dict):
        raise DataError(f"{place}: it has the splits {', '.join(map(repr, dataset))}; give one of them")
    if not len(dataset):
        raise DataError(f"{place}: no rows")
    row = dataset.with_format("arrow")[:1].to_pylist()[0]
    name = find_column(place, row) if column is None else columns_to_read(place, row, {"column": column})[0]
    if column is None:
        refuse_nested(place, name, row[name])
    table = dataset.select_columns([name]).with_format("arrow")
    slices = (table[first : first + ROWS] for first in range(0, len(table), ROWS))
    if tokenizer is not None:
        return text_lengths(place, [[text for rows in slices for text in rows.column(name).to_pylist()]], tokenizer)
    lengths = arrow_lengths(place, (chunk for rows in slices for chunk in rows.column(name).chunks))
    if column is not None or name != "input_ids" or MASK not in row:
        return lengths
    masks = dataset.select_columns([MASK]).with_format("arrow")
    slices = (masks[first : first + ROWS] for first in range(0, len(masks), ROWS))
    return arrow_real_tokens((chunk for rows in slices for chunk in rows.column(MASK).chunks), lengths)


def _column(path: Path, column: str | None) -> Ids:
    if path.suffix.lower() not in READERS:
        raise DataError(f"{path}: suffix {path.suffix!r} is not known; give one of {', '.join([*NUMBERS, *READERS])}")
    first = next(read_chunks(path, None, 1), None)
    if first is None:
        raise DataError(f"{path}: it is empty but for a header; give one row a sample")
    row = {name: values[0] for name, values in first.columns.items()}
    name = find_column(path, row) if column is None else columns_to_read(path, row, {"column": column})[0]
    if path.suffix.lower() != ".parquet":
        return value_lengths(path, read_columns(path, {"column": name})[name])
    import pyarrow.parquet as pq

    with opened(path), pq.ParquetFile(path) as file:
        return arrow_lengths(path, (batch.column(0) for batch in file.iter_batches(ROWS, columns=[name])))


def _count(path: Path, columns: Sequence[str], tokenizer: Any, prompt: str | None) -> Ids:
    options = {f"--text {name}": name for name in columns} | ({} if prompt is None else {"--prompt": prompt})
    if path.suffix.lower() in NUMBERS:
        raise DataError(f"{path}: it holds numbers, and no column of texts; leave out {', '.join(options)}")
    table = read_columns(path, options)
    return text_lengths(path, [table[name] for name in columns], tokenizer, None if prompt is None else table[prompt])
