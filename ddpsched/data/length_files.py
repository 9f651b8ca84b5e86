"""The lengths of a data set, from a file of numbers or from its texts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ddpsched.costs.cost_model import Int
from ddpsched.data.row_source import NUMBERS, locate, read_numbers
from ddpsched.data.table_files import READERS, read_columns
from ddpsched.data.token_table import UNCUT, tokenise
from ddpsched.data.tokenizer import is_text, load_tokenizer
from ddpsched.errors import DataError


def read_lengths(
    path: Path,
    column: str = "length",
    texts: Sequence[str] = (),
    tokenizer: str | None = None,
    max_length: int = 512,
    prompt: str | None = None,
) -> Int:
    """Return the tokens of each sample, int64 (N,).

    ``path``: a flat ``.npy`` array, a ``.txt`` with one number a line, or a CSV, TSV, JSON-lines or Parquet file whose
    ``column`` holds the numbers. With ``texts``, columns of such a file, each row's texts are joined by a newline and
    counted by ``tokenizer`` (a folder or a hub name), special tokens included, cut to ``max_length``. ``prompt``,
    another column, is counted with them as a pair, as in a run with ``data.prompt``: with BERT's, one [SEP] more.
    Raises DataError where a length is not a whole number of at least 1, naming the row.
    """
    if texts:
        return _count(locate(path) if path.is_dir() else path, texts, tokenizer, max_length, prompt)
    if prompt is not None:
        raise DataError(f"a prompt is named ({prompt}), but no column of texts behind it; name it with --text")
    if tokenizer is not None:
        raise DataError("a tokenizer is given, but no column of texts to count; name it with --text")
    if path.suffix.lower() in NUMBERS:
        return _checked(read_numbers(path), path)
    if path.suffix.lower() not in READERS:
        raise DataError(f"{path}: suffix {path.suffix!r} is not known; give one of {', '.join([*NUMBERS, *READERS])}")
    values = read_columns(path, {"--column": column})[column]
    for number, value in enumerate(values, 1):
        if isinstance(value, list | dict):
            raise DataError(f"{path}, length {number}: {value!r:.60} is not a number; give one length a sample")
    return _checked(np.array([np.nan if value is None else value for value in values]), path)


def _checked(values: Any, path: Path) -> Int:
    if values.dtype.kind not in "iufUSO":
        raise DataError(f"{path}: an array of {values.dtype}; give whole numbers, the tokens of each sample")
    if values.ndim != 1 or not len(values):
        raise DataError(f"{path}: an array of shape {values.shape}; give one length a sample, shape (N,), N at least 1")
    try:
        numbers = values.astype(np.float64)
    except (ValueError, TypeError):
        where, value = next((i, value) for i, value in enumerate(values.tolist()) if not _is_number(value))
        raise DataError(
            f"{path}, length {where + 1}: {value!r:.60} is not a number; give the tokens of each sample, or "
            "name columns of texts with --text and a --tokenizer"
        ) from None
    wrong = ~np.isfinite(numbers) | (numbers < 1) | (numbers != np.floor(numbers)) | (numbers > 2**40)
    if wrong.any():
        where = int(wrong.argmax())
        raise DataError(
            f"{path}, length {where + 1}: {values[where]} is not a whole number from 1 to 2**40; {int(wrong.sum())} of "
            f"{len(values)} are like this: every sample has at least one token; remove or correct them"
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
    table = read_columns(path, options)
    rows = list(zip(*(table[name] for name in options.values()), strict=True))
    for number, row in enumerate(rows, 1):
        if not all(map(is_text, row)):
            fault = "has a text that is missing, blank or not valid"
            raise DataError(f"{path}, row {number}: {row!r:.80} {fault}; correct or remove the row")
    if not rows:
        raise DataError(f"{path}: no rows")
    joined = ["\n".join(row[: len(columns)]) for row in rows]
    # a pair uncut, as a prompt that leaves its text no room can still be counted
    prompts, most = (None, max_length) if prompt is None else ([row[-1] for row in rows], UNCUT)
    tokens = tokenise(load_tokenizer(tokenizer), joined, most, prompts=prompts)
    return np.minimum(tokens.lengths(np.arange(len(tokens))), max_length)
