"""The lengths of a data set, from a file of numbers or from its texts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ddpsched.costs.cost_model import Int
from ddpsched.data.row_source import NUMBERS, locate
from ddpsched.data.table_files import READERS, read_columns
from ddpsched.data.token_table import tokenise
from ddpsched.data.tokenizer import load_tokenizer
from ddpsched.errors import DataError

UNCUT = 2**31  # tokens


def read_lengths(
    path: Path,
    column: str = "length",
    texts: Sequence[str] = (),
    tokenizer: str | None = None,
    max_length: int = 512,
    prompt: str | None = None,
) -> Int:
    """(N,), int64, tokens of each sample.

    ``path``: a flat ``.npy`` array, a ``.txt`` with one number a line, or a CSV, TSV, JSON-lines or Parquet file whose
    ``column`` holds the numbers. With ``texts``, columns of such a file, each row's texts are joined by a newline and
    counted by ``tokenizer`` (a folder or a hub name), special tokens included, cut to ``max_length``. ``prompt``, a
    column too, is counted with them as a pair, as a run with ``data.prompt`` has it: with BERT's one [SEP] more.
    Raises DataError where a length is not a whole number of at least 1, and names the row.
    """
    if texts:
        return _count(locate(path) if path.is_dir() else path, texts, tokenizer, max_length, prompt)
    if prompt is not None:
        raise DataError(f"a prompt is named ({prompt}), but no column of texts behind it; name it with --text")
    if tokenizer is not None:
        raise DataError("a tokenizer is given, but no column of texts to count; name it with --text")
    if not path.exists():
        raise DataError(f"{path}: no such file; check the path (it is relative to {Path.cwd()})")
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return _checked(_npy(path), path)
    if suffix == ".txt":
        return _checked(np.array(_text(path).split()), path)
    if suffix in READERS:
        values = read_columns(path, {"--column": column})[column]
        return _checked(_column(values, path), path)
    raise DataError(f"{path}: suffix {path.suffix!r} is not known; give one of {', '.join([*NUMBERS, *READERS])}")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error}); give one number a line") from None


def _column(values: list[Any], path: Path) -> Any:
    for number, value in enumerate(values, 1):
        if isinstance(value, list | dict):
            raise DataError(f"{path}, length {number}: {value!r:.60} is not a number; give one length a sample")
    return np.array([np.nan if value is None else value for value in values])


def _npy(path: Path) -> Any:
    try:
        found = np.load(path, allow_pickle=False)
        if not isinstance(found, np.ndarray):
            raise ValueError("several arrays in one file")
        return found
    except (ValueError, EOFError) as error:
        raise DataError(f"{path}: not an array of numbers ({error}); write it with numpy.save") from None


def _checked(values: Any, path: Path) -> Int:
    if values.dtype.kind not in "iufUSO":
        raise DataError(f"{path}: an array of {values.dtype}; give whole numbers, tokens of each sample")
    if values.ndim != 1 or not len(values):
        raise DataError(f"{path}: an array of shape {values.shape}; give one length a sample, shape (N,), N at least 1")
    try:
        numbers = values.astype(np.float64)
    except (ValueError, TypeError):
        where, value = next((i, value) for i, value in enumerate(values.tolist()) if not _is_number(value))
        raise DataError(
            f"{path}, length {where + 1}: {value!r:.60} is not a number; give tokens of each sample, or name "
            "columns of texts with --text and a --tokenizer"
        ) from None
    wrong = ~np.isfinite(numbers) | (numbers < 1) | (numbers != np.floor(numbers)) | (numbers > 2**40)
    if wrong.any():
        where = int(wrong.argmax())
        raise DataError(
            f"{path}, length {where + 1}: {values[where]} is not a whole number from 1 to 2**40; {int(wrong.sum())} of "
            f"{len(values)} are like this: every sample has at least one token; remove or mend them"
        )
    return numbers.astype(np.int64)


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (ValueError, TypeError):
        return False
    return True


def _count(path: Path, columns: Sequence[str], tokenizer: str | None, max_length: int, prompt: str | None) -> Int:
    if tokenizer is None:
        raise DataError("columns of texts are named, but no tokenizer to count them; name a folder with --tokenizer")
    options = {f"--text {name}": name for name in columns} | ({} if prompt is None else {"--prompt": prompt})
    found = read_columns(path, options)
    rows = list(zip(*(found[name] for name in options.values()), strict=True))
    for number, row in enumerate(rows, 1):
        if not all(isinstance(text, str) and text.strip() for text in row):
            raise DataError(f"{path}, row {number}: {row!r:.80} has a blank or missing text; mend or remove the row")
    if not rows:
        raise DataError(f"{path}: no rows")
    joined = ["\n".join(row[: len(columns)]) for row in rows]
    if prompt is None:
        table = tokenise(load_tokenizer(tokenizer), joined, max_length)
    else:  # whole, as a prompt that leaves its text no room can still be counted
        table = tokenise(load_tokenizer(tokenizer), joined, UNCUT, prompts=[row[-1] for row in rows])
    return np.minimum(table.lengths(np.arange(len(table))), max_length)
