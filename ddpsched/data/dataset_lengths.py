"""``ddpsched.lengths``: the tokens of each sample of a data set, in whatever form it is at hand."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ddpsched.data.column_lengths import (
    MASK,
    find_column,
    is_number,
    real_tokens,
    refuse_nested,
    text_lengths,
    value_lengths,
)
from ddpsched.data.length_files import arrow_dataset_lengths, read_lengths
from ddpsched.data.lengths import is_counted
from ddpsched.data.table_files import columns_to_read
from ddpsched.data.tokenizer import Ids, is_text
from ddpsched.errors import DataError


def lengths(
    dataset: Any,
    column: str | None = None,
    *,
    tokenizer: Any = None,
    max_length: int | None = None,
    length_fn: Callable[[Any], int] | None = None,
) -> Ids:
    """Return the tokens of each sample, int64 (N,), as samplers, loaders and ``ddpsched.plan`` take them.

        sampler = ddpsched.BatchSampler(ddpsched.lengths(tokenised), global_batch=64)

    ``dataset``: a data set of ``datasets``, whose Arrow column is counted without its samples; a folder that its
    ``save_to_disk`` wrote; a file (TSV, CSV, JSON lines, Parquet, npy, txt); the columns that a tokenizer returned; a
    flat array of lengths; or any sequence of samples.

    ``column``: of tables, and of samples that are mappings: lists of token ids, which are counted; whole numbers, which
    are the lengths; or texts, with a ``tokenizer``. Without it the first of "input_ids", "length" and "lengths" that
    there is. ``tokenizer``: a folder, a hub name, or a tokenizer of ``tokenizers`` or ``transformers``; special tokens
    count, and the token ids that a fast one made are kept in ``$DDPSCHED_CACHE``. ``max_length``: where your loop cuts
    samples. ``length_fn(sample)``: for samples of any other kind. Without it an array counts its first dimension, T of
    (T, features), and of a tuple the first part that is a list or an array counts, as of (ids, label). Padding does not
    count where an "attention_mask" stands beside "input_ids", or in a tuple behind its ids.

    Warns where all lengths are equal, as those of rows that are padded already. Raises DataError where a length is not
    known, or below 1; the message says what to give.

    >>> lengths([[7, 8, 9], [7]]).tolist()
    [3, 1]
    >>> lengths([{"input_ids": [7, 8, 9]}, {"input_ids": [7]}], max_length=2).tolist()
    [2, 1]
    """
    if max_length is not None and max_length < 1:
        raise DataError(f"lengths: max_length = {max_length}, needs an integer of 1 or more")
    found = _lengths(dataset, column, tokenizer, length_fn)
    if len(found) > 1 and (found == found[0]).all():
        warnings.warn(
            f"lengths: all {len(found)} samples are {found[0]} long, so no plan can be better than another; where rows "
            "are padded already, or their first dimension is not their length, give length_fn, such as "
            "lambda sample: int(sample['attention_mask'].sum())",
            stacklevel=2,
        )
    return found if max_length is None else np.minimum(found, max_length)


def _lengths(dataset: Any, column: str | None, tokenizer: Any, length_fn: Callable[[Any], int] | None) -> Ids:
    place = f"lengths({type(dataset).__name__})"
    if length_fn is not None:
        return value_lengths(place, [length_fn(sample) for sample in _samples(place, dataset)])
    if isinstance(dataset, str | os.PathLike):
        if not Path(dataset).exists():
            raise DataError(f"{dataset}: no such file or folder; give one, or the samples themselves")
        if tokenizer is None or column is None:
            return read_lengths(Path(dataset), column, tokenizer=tokenizer)
        return read_lengths(Path(dataset), texts=[column], tokenizer=tokenizer)
    if hasattr(dataset, "with_format") and hasattr(dataset, "__len__"):  # of datasets
        return arrow_dataset_lengths(place, dataset, column, tokenizer)
    if _has_columns(dataset):  # or splits
        values: Any = _of_columns(place, dataset, column)
    elif getattr(dataset, "ndim", 1) > 1:
        raise DataError(
            f"{place}: an array of shape {tuple(dataset.shape)}, whose rows are all as long; give the real tokens of "
            "each, such as attention_mask.sum(1)"
        )
    else:
        values = _of_samples(place, _samples(place, dataset), column)
    if tokenizer is None and len(values) and is_text(values[0]) and not is_number(values[0]):
        raise DataError(
            f"{place}: a sample is the text {values[0]!r:.60}; give tokenizer=, a folder or a tokenizer that counts "
            "its tokens, or length_fn"
        )
    return value_lengths(place, values) if tokenizer is None else text_lengths(place, [values], tokenizer)


def _has_columns(dataset: Any) -> bool:
    """Return whether it maps names to columns, as a tokenizer's output and a DataFrame do, and no Series."""
    return hasattr(dataset, "keys") and getattr(dataset, "ndim", 2) > 1


def _samples(place: str, dataset: Any) -> list[Any]:
    """Return all samples, one by one. Raises DataError where they have no ids."""
    if _has_columns(dataset):
        columns = {name: list(dataset[name]) for name in dataset.keys()}  # noqa: SIM118 (a tokenizer's output)
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise DataError(
            f"{place}: it has no samples by id, so no length is known beforehand; use ddpsched.StreamScheduler "
            "or PoolStream for an iterable dataset"
        )
    if hasattr(dataset, "tolist"):
        return list(dataset.tolist())
    return [dataset[number] for number in range(len(dataset))]


def _of_columns(place: str, table: Any, column: str | None) -> list[Any]:
    names = list(table.keys())
    splits = [name for name in names if hasattr(table[name], "select_columns")]
    if splits or not names:
        raise DataError(f"{place}: it has the splits {', '.join(map(repr, names))}; give one of them")
    odd = [name for name in names if not hasattr(table[name], "__iter__")]
    if odd:
        raise DataError(
            f"{place}: {odd[0]!r} is {table[odd[0]]!r:.60}, no column; give a mapping of columns, or a list of samples"
        )
    first = {name: next(iter(table[name]), None) for name in names}
    name = find_column(place, first) if column is None else columns_to_read(place, names, {"column": column})[0]
    values = list(table[name])
    if column is None and values:
        refuse_nested(place, name, values[0])
    has_mask = column is None and MASK in names and name == "input_ids"
    return list(map(real_tokens, values, table[MASK])) if has_mask else values


def _of_samples(place: str, samples: list[Any], column: str | None) -> list[Any]:
    """Return the part of each sample that is counted."""
    first = samples[0] if samples else None
    if isinstance(first, Mapping):
        name = find_column(place, first) if column is None else columns_to_read(place, first, {"column": column})[0]
        missing = next((number for number, sample in enumerate(samples) if name not in sample), None)
        if missing is not None:
            raise DataError(f"{place}, sample {missing}: it has no {name!r}, as sample 0 has; correct or remove it")
        if column is None:
            refuse_nested(place, name, first[name])
        if column is None and name == "input_ids" and MASK in first:
            return [real_tokens(sample[name], sample.get(MASK)) for sample in samples]
        return [sample[name] for sample in samples]
    if column is not None:
        raise DataError(
            f"{place}: column = {column!r}, but a sample is a {type(first).__name__} without columns; leave it out, or "
            "give length_fn"
        )
    if isinstance(first, tuple):
        number = _part_of(place, first)
        if number is not None:
            parts = [sample[number] for sample in samples]
            masks = (column for column in zip(*samples, strict=False) if _are_masks(column, parts))
            mask = next(masks, None)
            return _of_samples(place, parts, None) if mask is None else list(map(real_tokens, parts, mask))
    return samples


def _part_of(place: str, sample: tuple[Any, ...]) -> int | None:
    """Return which part of a tuple is counted; None for the tuple itself, where it holds token ids."""
    for counts in (is_counted, lambda part: isinstance(part, Mapping), is_text):
        for number, part in enumerate(sample):
            if counts(part):
                return number
    if all(isinstance(part, int | np.integer) for part in sample):
        return None
    kinds = ", ".join(type(part).__name__ for part in sample)
    raise DataError(f"{place}: a sample is a tuple of {kinds}, none of which has a length; give length_fn")


def _are_masks(column: Sequence[Any], ids: Sequence[Any]) -> bool:
    """Return whether a part of each sample is 1 over tokens, at one end, and 0 over one padding token at the other."""
    pads = set[int]()
    for mask, row in zip(column, ids, strict=False):
        if not is_counted(mask) or not is_counted(row) or len(mask) != len(row):
            return False
        ones, tokens = np.asarray(mask), np.asarray(row)
        if ones.ndim != 1 or tokens.ndim != 1 or not np.isin(ones, (0, 1)).all() or np.count_nonzero(np.diff(ones)) > 1:
            return False
        pads.update(tokens[ones == 0].tolist())
    return len(pads) == 1
