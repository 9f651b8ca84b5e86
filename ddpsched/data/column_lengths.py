"""The length of each value of a column: token ids are counted, whole numbers are lengths, texts are tokenised."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from ddpsched.data.lengths import is_counted
from ddpsched.data.token_table import UNCUT, tokenise
from ddpsched.data.tokenizer import CHUNK, Ids, is_text, load_tokenizer
from ddpsched.errors import DataError

COLUMNS = ("input_ids", "length", "lengths")  # looked for in this order where no column is named
MASK = "attention_mask"  # beside "input_ids": 0 over padding
LENGTHS = re.compile("len|token|frame|duration|size", re.IGNORECASE)  # names of columns that may hold them


def find_column(place: object, row: Mapping[str, Any]) -> str:
    """Return the first of COLUMNS that a table has. ``row``: its first one.

    Raises DataError where it has none of them, with its columns of numbers, of lists and of texts.
    """
    found = next((name for name in COLUMNS if name in row), None)
    if found is not None:
        return found
    texts = [name for name, value in row.items() if isinstance(value, str) and not is_number(value)]
    others = [name for name, value in row.items() if name not in texts and value is not None]
    counted = [name for name in others if is_counted(row[name])]
    likely = counted or [name for name in others if LENGTHS.search(name)] or ([] if texts else others)
    ways = [f"the column of lengths, token ids or arrays, such as {name!r}" for name in likely[:1]]
    ways += [f"a column of texts, such as {name!r}, and a tokenizer" for name in texts[:1]]
    raise DataError(
        f"{place}: no column {', '.join(map(repr, COLUMNS[:-1]))} or {COLUMNS[-1]!r}; it has "
        f"{', '.join(map(repr, row))}; name {' or '.join(ways) or 'a column of lengths, token ids or texts'}"
    )


def value_lengths(place: object, values: Sequence[Any]) -> Ids:
    """Return the length of each value, int64 (N,): all are lists or arrays, which are counted, or all are numbers.

    Raises DataError, with ``place`` and the value's number from 1.
    """
    if not len(values) or not is_counted(values[0]):
        mixed = next((number for number, value in enumerate(values, 1) if is_counted(value)), None)
        if mixed is not None:
            fault = f"{values[mixed - 1]!r:.60} is a list among numbers"
            raise DataError(f"{place}, length {mixed}: {fault}; correct or remove the row")
        return numbers(place, _with_nan(values))
    for number, value in enumerate(values, 1):
        if not is_counted(value) or not len(value):
            fault = "has no token ids" if is_counted(value) or value is None else "is no list among lists"
            raise DataError(f"{place}, row {number}: {value!r:.60} {fault}; correct or remove the row")
    return np.array([len(value) for value in values], dtype=np.int64)


def arrow_lengths(place: object, chunks: Iterable[Any]) -> Ids:
    """Return the length of each value of the chunks of an Arrow column, int64 (N,); lists without their items.

    Raises DataError as :func:`value_lengths` does.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    found = [np.zeros(0, dtype=np.int64)]
    for chunk in chunks:
        values, first = chunk.storage if isinstance(chunk.type, pa.ExtensionType) else chunk, sum(map(len, found))
        kind = values.type
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
            found.append(numbers(place, _with_nan(values.to_pylist()), first))
            continue
        counts = pc.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False)
        if len(counts) and not counts.min():
            row = first + int(counts.argmin()) + 1
            raise DataError(f"{place}, row {row}: it has no token ids; correct or remove the row")
        found.append(counts.astype(np.int64))
    return np.concatenate(found)


def real_tokens(ids: Any, mask: Any) -> Any:
    """Return as many of a row's token ids as its mask keeps; all where it is no mask of them, or keeps none."""
    if not is_counted(ids) or not is_counted(mask) or len(ids) != len(mask):
        return ids
    if is_counted(mask[0] if len(mask) else None):
        return ids
    kept = np.asarray(mask)
    is_mask = kept.ndim == 1 and bool(((kept == 0) | (kept == 1)).all())  # and none that is added to scores
    count = int(np.count_nonzero(kept)) if is_mask else 0
    return ids[:count] if count else ids


def refuse_nested(place: object, name: str, value: Any) -> None:
    """Raise DataError for "input_ids" that are lists of lists, as of several choices: which one is run is not known."""
    if name == "input_ids" and is_counted(value) and len(value) and is_counted(value[0]):
        raise DataError(
            f"{place}: 'input_ids' of a sample are {len(value)} lists, as of several choices; give length_fn, such as "
            "lambda sample: sum(map(len, sample['input_ids']))"
        )


def arrow_real_tokens(chunks: Iterable[Any], lengths: Ids) -> Ids:
    """Return how many tokens of each row the masks of an Arrow column keep; its length where they do not say."""
    import pyarrow as pa
    import pyarrow.compute as pc

    first = 0
    for chunk in chunks:
        values, rows = pc.list_flatten(chunk), pc.list_parent_indices(chunk)
        if not (pa.types.is_integer(values.type) or pa.types.is_boolean(values.type)):
            return lengths
        sums = np.bincount(rows, weights=values.cast(pa.int8()).fill_null(0).to_numpy(), minlength=len(chunk))
        whole = lengths[first : first + len(chunk)]
        counts = pc.list_value_length(chunk).fill_null(0).to_numpy(zero_copy_only=False)
        lengths[first : first + len(chunk)] = np.where((counts == whole) & (sums > 0), sums, whole)
        first += len(chunk)
    return lengths


def text_lengths(
    place: object, columns: Sequence[Sequence[Any]], tokenizer: Any, prompts: Sequence[Any] | None = None
) -> Ids:
    """Return the tokens of each row's texts, joined by newlines, uncut and with special tokens, int64 (N,).

    ``tokenizer``: a folder, a hub name, or a tokenizer of ``tokenizers`` or ``transformers``. ``prompts``: counted with
    the texts, as pairs. Raises DataError for a text that is missing, blank or not valid.
    """
    if tokenizer is None:
        raise DataError(
            "texts are given, but no tokenizer to count them; name its folder (--tokenizer FOLDER, or tokenizer=FOLDER "
            "in Python)"
        )
    rows = list(zip(*columns, *([] if prompts is None else [prompts]), strict=True))
    for number, row in enumerate(rows, 1):
        if not all(map(is_text, row)):
            if number == 1 and any(isinstance(value, int | float) for value in row):
                raise DataError(f"{place}, row {number}: {row!r:.80} holds a number; name a column of texts")
            fault = "has a text that is missing, blank or not valid"
            raise DataError(f"{place}, row {number}: {row!r:.80} {fault}; correct or remove the row")
    if not rows:
        raise DataError(f"{place}: no rows")
    texts = ["\n".join(row[: len(columns)]) for row in rows]
    fast = (
        load_tokenizer(tokenizer) if isinstance(tokenizer, str) else getattr(tokenizer, "backend_tokenizer", tokenizer)
    )
    if isinstance(fast, Tokenizer):
        # uncut, as a prompt that leaves its text no room can still be counted
        tokens = tokenise(fast, texts, UNCUT, prompts=prompts)
        return tokens.lengths(np.arange(len(tokens)))
    chunks = (texts[first : first + CHUNK] for first in range(0, len(texts), CHUNK))
    return np.array([len(ids) for chunk in chunks for ids in tokenizer(chunk)["input_ids"]], dtype=np.int64)


def numbers(place: object, values: Any, before: int = 0) -> Ids:
    """Return an array of whole numbers from 1 to 2**40 as int64 (N,).

    Raises DataError, which numbers values from ``before``.
    """
    if values.dtype.kind not in "iufUSO":
        raise DataError(f"{place}: an array of {values.dtype}; give whole numbers, the tokens of each sample")
    if values.ndim != 1 or not len(values):
        raise DataError(
            f"{place}: an array of shape {values.shape}; give one length a sample, shape (N,), N at least 1"
        )
    try:
        given = values.astype(np.float64)
    except (ValueError, TypeError):
        where, value = next((i, value) for i, value in enumerate(values.tolist(), before) if not is_number(value))
        raise DataError(
            f"{place}, length {where + 1}: {value!r:.60} is not a number; give the tokens of each sample, or a column "
            "of texts (--text NAME, or column=NAME in Python) and a tokenizer"
        ) from None
    wrong = ~np.isfinite(given) | (given < 1) | (given != np.floor(given)) | (given > 2**40)
    if wrong.any():
        where = int(wrong.argmax())
        raise DataError(
            f"{place}, length {before + where + 1}: {values[where]} is not a whole number from 1 to 2**40; "
            f"{int(wrong.sum())} of {len(values)} are like this: every sample has at least one token; remove or "
            "correct them"
        )
    return given.astype(np.int64)


def _with_nan(values: Sequence[Any]) -> Any:
    return np.array([np.nan if value is None else value for value in values])


def is_number(value: Any) -> bool:
    """Return whether a value is a number, or a text that is one."""
    try:
        float(value)
    except (ValueError, TypeError):
        return False
    return True
