"""What may make a sample difficult, as numbers of a chunk of rows."""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from ddpsched.config import RunConfig
from ddpsched.data.encode import Encoded
from ddpsched.data.table_files import Chunk, Wanted
from ddpsched.errors import ConfigError, DataError
from ddpsched.functions import function_named

Values = npt.NDArray[Any]  # (n,), int64 or float64
EXACT = 2**53  # whole numbers up to here are floats too
KINDS = "length, rarity, loss, column:NAME or module:function"


@dataclass(frozen=True)
class Rows:
    """A chunk, and its samples' tokens where a metric asks for them."""

    chunk: Chunk
    encoded: Encoded | None

    @property
    def tokens(self) -> Encoded:
        assert self.encoded is not None, "the chunk was not encoded, as no metric said that it needs tokens"
        return self.encoded


@dataclass(frozen=True)
class Metric:
    """``name``: of its column in the file. ``values(rows)``: (n,), the larger the more difficult; None: they follow
    from the tokens of all samples, see :func:`rarities`. ``wanted``: columns read beside the text; None for all.
    ``version``: tells it from another of its name, as weights or code may change.
    """

    name: str
    values: Callable[[Rows], Values] | None
    tokens: bool = False
    wanted: Wanted | None = None
    version: str = ""


def metrics_of(names: Sequence[str], config: RunConfig) -> list[Metric]:
    """The metrics named; ConfigError for one that is none, or is named twice."""
    twice = {name for name in names if list(names).count(name) > 1}
    if twice:
        raise ConfigError(f"--metric {twice.pop()} is given twice; each breaks the ties of the ones before it")
    return [_metric(name, config) for name in names]


def _metric(name: str, config: RunConfig) -> Metric:
    kind, _, rest = name.partition(":")
    if name == "length":
        return Metric(name, lambda rows: rows.tokens.lengths, tokens=True, wanted={})
    if name == "rarity":
        return Metric(name, None, tokens=True, wanted={})
    if name == "loss":
        from ddpsched.training.sample_loss import SampleLoss

        loss = SampleLoss(config)
        return Metric(
            name, lambda rows: loss(rows.tokens, rows.chunk), tokens=True, wanted=loss.wanted, version=loss.version
        )
    if kind == "column" and rest:
        return Metric(name, lambda rows: column_values(rows.chunk, rest), wanted={f"--metric column:{rest}": rest})
    if kind and rest:
        function, _ = function_named(name, "--metric")
        return Metric(name, lambda rows: _own(name, function, rows.chunk), version=_code(function))
    raise ConfigError(f"--metric {name!r} is none of {KINDS}")


def column_values(chunk: Chunk, column: str) -> Values:
    """(n,), float64: the numbers of a column, NaN where there is none. DataError where one is no number."""
    found = np.empty(chunk.num_rows)
    for number, value in enumerate(chunk.columns[column]):
        found[number] = _number(value, chunk.first + number + 1, column)
    return found


def _number(value: Any, row: int, column: str) -> float:
    if value is None or value == "":
        return math.nan
    number: float | None = None
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            number = float(value)
        except ValueError:
            number = None
    if number is None:
        raise DataError(
            f"row {row}, column {column!r}: {value!r:.60} is {type(value).__name__}, not a number; an order needs "
            "numbers in every row"
        )
    if abs(number) >= EXACT and not isinstance(value, float) and str(value).strip().lstrip("+-").isdecimal():
        raise DataError(f"row {row}, column {column!r}: {value} is beyond 2**53, where whole numbers run together")
    return number


def _code(function: Callable[..., Any]) -> str:
    """Of the module that it stands in; nothing where that has no source."""
    try:
        code = inspect.getsource(inspect.getmodule(function) or function)
    except (OSError, TypeError):
        return ""
    return blake2b(code.encode(), digest_size=8).hexdigest()


def _own(name: str, function: Callable[[dict[str, list[Any]]], Any], chunk: Chunk) -> Values:
    """What the user's function makes of a chunk's columns."""
    try:
        found = np.asarray(function(chunk.columns))
    except Exception as error:
        rows = f"rows {chunk.first + 1} to {chunk.first + chunk.num_rows}"
        raise DataError(f"--metric {name}: raised {type(error).__name__} at {rows}: {error}") from error
    if found.shape != (chunk.num_rows,) or found.dtype.kind not in "iuf":
        raise DataError(
            f"--metric {name}: returned {found.dtype} of shape {found.shape} for {chunk.num_rows} rows; return one "
            "number for each"
        )
    if found.dtype.kind in "iu" and len(found) and max(int(found.max()), -int(found.min())) > EXACT:
        raise DataError(f"--metric {name}: returned whole numbers beyond 2**53, which run together; scale them down")
    return found.astype(np.float64)


def rarities(flat: npt.NDArray[np.int32], lengths: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> Values:
    """(n,): of each sample the sum of -log p over its tokens, p a token's share of all tokens of the data set.

    ``flat``: (total,), tokens of n samples one after another, ``lengths`` of each; ``counts[token]`` in the whole set.
    Source: Platanios et al. 2019, "Competence-based curriculum learning for neural machine translation".

    >>> rarities(np.array([0, 0, 1], np.int32), np.array([2, 1]), np.array([3, 1])).round(3).tolist()
    [0.575, 1.386]
    """
    if not len(lengths):
        return np.zeros(0)
    with np.errstate(divide="ignore"):
        surprise = np.log(counts.sum()) - np.log(counts)
    return np.add.reduceat(surprise[flat], np.concatenate([[0], np.cumsum(lengths)[:-1]]))
