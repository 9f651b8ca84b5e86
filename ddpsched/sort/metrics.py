"""Metrics of difficulty, as numbers for each row of a chunk."""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from ddpsched.config import RunConfig
from ddpsched.data.table_files import Chunk, Wanted
from ddpsched.data.tokenizer import Encoded
from ddpsched.errors import ConfigError, DataError
from ddpsched.functions import function_named

Values = npt.NDArray[Any]  # (n,), int64 or float64
EXACT = 2**53  # the largest integer up to which every one is a float64
KINDS = "length, rarity, loss, column:NAME or module:function"


@dataclass(frozen=True)
class Rows:
    """A chunk, and its samples' tokens where a metric needs them."""

    chunk: Chunk
    encoded: Encoded | None

    @property
    def tokens(self) -> Encoded:
        """The token ids of the chunk's samples."""
        assert self.encoded is not None, "the chunk was not encoded, as no metric needs tokens"
        return self.encoded


@dataclass(frozen=True)
class Metric:
    """A metric, and the ``name`` of its column in the file.

    ``values(rows)``: (n,), larger where more difficult; None where they depend on the tokens of all samples (see
    :func:`rarities`). ``tokens``: whether it needs them. ``wanted``: columns read beside the text; None for all.
    ``version``: changes with the weights or the code behind the name.
    """

    name: str
    values: Callable[[Rows], Values] | None
    tokens: bool = False
    wanted: Wanted | None = None
    version: str = ""


def metrics_of(names: Sequence[str], config: RunConfig) -> list[Metric]:
    """Return the metrics named; ConfigError for one that is unknown, or is named twice."""
    for n, name in enumerate(names):
        if name in names[:n]:
            raise ConfigError(f"--metric {name} is given twice; each breaks the ties of the ones before it")
    return [_metric(name, config) for name in names]


def _metric(name: str, config: RunConfig) -> Metric:
    kind, _, rest = name.partition(":")
    if name == "length":
        return Metric(name, lambda rows: rows.tokens.lengths, tokens=True, wanted={})
    if name == "rarity":
        return Metric(name, None, tokens=True, wanted={})
    if name == "loss":
        from ddpsched.training.evaluate import SampleLoss

        loss = SampleLoss(config)
        return Metric(name, lambda rows: loss(rows.tokens, rows.chunk), True, loss.wanted, loss.version)
    if kind == "column" and rest:
        return Metric(name, lambda rows: column_values(rows.chunk, rest), wanted={f"--metric column:{rest}": rest})
    if kind and rest:
        function, _ = function_named(name, "--metric")
        return Metric(name, lambda rows: _called(name, function, rows.chunk), version=_code(function))
    raise ConfigError(f"--metric {name!r} is none of {KINDS}")


def column_values(chunk: Chunk, column: str) -> Values:
    """Return the numbers of a column, (n,), float64, NaN where missing. Raises DataError where a value is no number."""
    rows = enumerate(chunk.columns[column], chunk.first + 1)
    return np.array([_number(value, row, column) for row, value in rows], dtype=np.float64)


def _number(value: Any, row: int, column: str) -> float:
    if value is None or value == "":
        return math.nan
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        number = float(value)
    except ValueError:
        raise DataError(
            f"row {row}, column {column!r}: {value!r:.60} is {type(value).__name__}, not a number; an order needs "
            "numbers in every row"
        ) from None
    if abs(number) >= EXACT and not isinstance(value, float) and str(value).strip().lstrip("+-").isdecimal():
        raise DataError(f"row {row}, column {column!r}: {value} is beyond 2**53, where float64 skips whole numbers")
    return number


def _code(function: Callable[..., Any]) -> str:
    """Return a hash of the source of the function's module; "" where it has no source."""
    try:
        code = inspect.getsource(inspect.getmodule(function) or function)
    except (OSError, TypeError):
        return ""
    return blake2b(code.encode(), digest_size=8).hexdigest()


def _called(name: str, function: Callable[[dict[str, list[Any]]], Any], chunk: Chunk) -> Values:
    """Return what the user's function computes from a chunk's columns; DataError where that is not a number per row."""
    try:
        values = np.asarray(function(chunk.columns))
    except Exception as error:
        rows = f"rows {chunk.first + 1} to {chunk.first + chunk.num_rows}"
        raise DataError(f"--metric {name}: raised {type(error).__name__} at {rows}: {error}") from error
    if values.shape != (chunk.num_rows,) or values.dtype.kind not in "iuf":
        raise DataError(
            f"--metric {name}: returned {values.dtype} of shape {values.shape} for {chunk.num_rows} rows; return one "
            "number for each"
        )
    if values.dtype.kind in "iu" and len(values) and max(int(values.max()), -int(values.min())) > EXACT:
        raise DataError(
            f"--metric {name}: returned whole numbers beyond 2**53, where float64 skips some; scale them down"
        )
    return values.astype(np.float64)


def rarities(flat: npt.NDArray[np.int32], lengths: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> Values:
    """Return the sum of -log p over each sample's tokens, (n,); p: a token's share of all tokens of the data set.

    ``flat``: (total,), tokens of n samples one after another; ``lengths``: (n,); ``counts[token]``: in the whole set.
    Source: Platanios et al. 2019, "Competence-based curriculum learning for neural machine translation".

    >>> rarities(np.array([0, 0, 1], np.int32), np.array([2, 1]), np.array([3, 1])).round(3).tolist()
    [0.575, 1.386]
    """
    if not len(lengths):
        return np.zeros(0)
    with np.errstate(divide="ignore"):
        surprise = np.log(counts.sum()) - np.log(counts)
    return np.add.reduceat(surprise[flat], np.concatenate([[0], np.cumsum(lengths)[:-1]]))
