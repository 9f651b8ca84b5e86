"""The data and the metrics of a sort, and the measurement of a chunk of rows."""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ddpsched.arguments import check_output, function_named
from ddpsched.config import RunConfig, apply_overrides, load, parse
from ddpsched.data.row_source import NUMBERS, RowSource, number_rows, training_rows
from ddpsched.data.samples import check_texts, tokenizer_of
from ddpsched.data.table_files import READERS, Chunk, Wanted
from ddpsched.data.tokenizer import Encoded, Encoder
from ddpsched.errors import ConfigError, DataError

Values = npt.NDArray[Any]  # (n,), int64 or float64
EXACT = 2**53  # the largest integer up to which every one is a float64


@dataclass(frozen=True)
class Request:
    """The arguments of the command line. ``data``: a file, a folder, a hub name or a run's TOML."""

    data: str
    words: tuple[str, ...]
    output: Path
    metrics: tuple[str, ...]
    chunk: int
    overwrite: bool


@dataclass(frozen=True)
class Metric:
    """A metric, and the ``name`` of its column in the file.

    ``values(encoded, chunk)``: (n,), larger where more difficult; None where they depend on the tokens of all samples
    (see :func:`rarities`). ``tokens``: whether it needs them in ``encoded``. ``wanted``: columns read beside the text;
    None for all. ``version``: changes with the weights or the code behind the name.
    """

    name: str
    values: Callable[[Any, Chunk], Values] | None
    tokens: bool = False
    wanted: Wanted | None = None
    version: str = ""


@dataclass(frozen=True)
class Work:
    """The data and metrics of a sort.

    ``encoder``: None where no metric needs tokens. ``texts``: the columns that it encodes, by their keys in the config.
    ``how``: the version of the tokens and of each metric.
    """

    config: RunConfig
    source: RowSource
    metrics: list[Metric]
    encoder: Encoder | None
    texts: dict[str, str]
    fingerprint: str
    how: str

    @classmethod
    def of(cls, request: Request) -> "Work":
        """Open the data of a request. Raises ConfigError or DataError where that is impossible."""
        check_output(request.output, request.overwrite, "order.npy")
        if request.output.suffix != ".npy":
            raise ConfigError(f"--output {request.output}: the output is a numpy array; give it the suffix .npy")
        path = Path(request.data).expanduser()
        if path.suffix.lower() in NUMBERS:
            if needless := ", ".join((*request.metrics, *request.words)):
                raise ConfigError(f"{path} holds numbers, which are the metric; leave out {needless}")
            config, source, metrics = parse({"steps": 1}), number_rows(path), [_column("value", "DATA", "value")]
        else:
            config = _config(request)
            if config.data.on_bad == "skip":
                raise ConfigError("data.on_bad = 'skip': an ordered file has all rows of its data; correct them first")
            rows = training_rows(config.data)
            if rows is None:
                raise ConfigError(f"{request.data}: names no data set; set data.path or data.name in it")
            source, metrics = rows, metrics_of(request.metrics or ("length",), config)
        encoder, texts, how = None, {}, []
        if any(metric.tokens for metric in metrics):
            data, tokenizer = config.data, tokenizer_of(config.data, config.model.name)
            least = 2 if config.model.task == "causal_lm" else 1
            encoder = Encoder(tokenizer, data.max_length, data.prompt is not None, least)
            texts = {"data.text": data.text} | ({} if data.prompt is None else {"data.prompt": data.prompt})
            digest = blake2b(tokenizer.to_str().encode(), digest_size=8).hexdigest()
            how = [f"tokens by {digest}, at most {data.max_length}"]
        how += [f"{metric.name}: {metric.version}" for metric in metrics if metric.version]
        return cls(config, source, metrics, encoder, texts, source.fingerprint(), "; ".join(how))

    def identity(self, chunk: int) -> dict[str, Any]:
        """Return everything that parts of ``chunk`` rows depend on."""
        names, data = [metric.name for metric in self.metrics], self.config.data
        columns = [data.text, data.prompt, data.label]
        return {"data": self.fingerprint, "metrics": names, "how": self.how, "columns": columns, "chunk": chunk}

    @property
    def left_out(self) -> str:
        """The keys by which a run uses fewer rows than there are, "" where none is set."""
        data = self.config.data
        return " and ".join(f"data.{key}" for key in ("rows", "held_out") if getattr(data, key))

    @property
    def counts_tokens(self) -> bool:
        """Whether a metric depends on the tokens of all samples."""
        return any(metric.values is None for metric in self.metrics)

    @property
    def wanted(self) -> dict[str, str] | None:
        """The columns to read; None for all."""
        if any(metric.wanted is None for metric in self.metrics):
            return None
        wanted = dict(self.texts)
        for metric in self.metrics:
            wanted |= metric.wanted or {}
        return wanted

    def measured(self, chunk: Chunk) -> dict[str, Values]:
        """Return the part of a chunk: each metric's values by its number; tokens where a metric needs all of them."""
        encoded = None if self.encoder is None else self._encoded(self.encoder, chunk)
        part = {str(n): m.values(encoded, chunk) for n, m in enumerate(self.metrics) if m.values is not None}
        if encoded is not None and self.counts_tokens:
            part |= {"flat": encoded.flat, "lengths": encoded.lengths}
        num_truncated = 0 if encoded is None else encoded.num_truncated
        return part | {"num_rows": np.array(chunk.num_rows), "num_truncated": np.array(num_truncated)}

    def _encoded(self, encoder: Encoder, chunk: Chunk) -> Encoded:
        for name in self.texts.values():
            if name not in chunk.columns:
                raise DataError(f"{self.source.name}: no column {name!r}; it has {', '.join(chunk.columns)}")
            check_texts(self.source.name, name, chunk.columns[name], first=chunk.first)
        texts, *prompts = (chunk.columns[name] for name in self.texts.values())
        numbers = range(chunk.first + 1, chunk.first + chunk.num_rows + 1)
        return encoder.encode(texts, prompts[0] if prompts else None, numbers)


def _config(request: Request) -> RunConfig:
    """Return the config of a run's TOML, or of a data set's path, or of its name on the hub."""
    if request.data.endswith(".toml"):
        return load(request.data, request.words)
    path = Path(request.data).expanduser()
    named = not path.exists() and path.suffix not in READERS and not request.data.startswith((".", "/", "~"))
    table = {"steps": 1, "data": {"name" if named else "path": request.data}}
    return parse(apply_overrides(table, request.words), source="ddpsched sort")


def metrics_of(names: Sequence[str], config: RunConfig) -> list[Metric]:
    """Return the metrics named; ConfigError for one that is unknown, or is named twice."""
    for n, name in enumerate(names):
        if name in names[:n]:
            raise ConfigError(f"--metric {name} is given twice; each breaks the ties of the ones before it")
    return [_metric(name, config) for name in names]


def _metric(name: str, config: RunConfig) -> Metric:
    kind, _, rest = name.partition(":")
    if name == "length":
        return Metric(name, lambda encoded, chunk: encoded.lengths, tokens=True, wanted={})
    if name == "rarity":
        return Metric(name, None, tokens=True, wanted={})
    if name == "loss":
        from ddpsched.training.evaluate import SampleLoss

        loss = SampleLoss(config)
        return Metric(name, loss, True, loss.wanted, loss.version)
    if kind == "column" and rest:
        return _column(name, f"--metric column:{rest}", rest)
    if kind and rest:
        function, _ = function_named(name, "--metric")
        return Metric(name, lambda encoded, chunk: _called(name, function, chunk), version=_code(function))
    raise ConfigError(f"--metric {name!r} is none of length, rarity, loss, column:NAME or module:function")


def _column(name: str, option: str, column: str) -> Metric:
    return Metric(name, lambda encoded, chunk: column_values(chunk, column), wanted={option: column})


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
        kind = type(value).__name__
        raise DataError(f"row {row}, column {column!r}: {value!r:.60} is {kind}, not a number; correct it") from None
    if abs(number) >= EXACT and not isinstance(value, float) and str(value).strip().lstrip("+-").isdecimal():
        raise DataError(f"row {row}, column {column!r}: {value} is beyond 2**53, where float64 rounds; scale it down")
    return number


def _code(function: Callable[..., Any]) -> str:
    """Return a hash of the source of the function's module; "" where it has no source."""
    try:
        code = inspect.getsource(inspect.getmodule(function) or function)
    except (OSError, TypeError):
        return ""
    return blake2b(code.encode(), digest_size=8).hexdigest()


def _called(name: str, function: Callable[[dict[str, list[Any]]], Any], chunk: Chunk) -> Values:
    """Return the result of the user's function of a chunk's columns; DataError where it is not a number per row."""
    try:
        values = np.asarray(function(chunk.columns))
    except Exception as error:
        rows = f"rows {chunk.first + 1} to {chunk.first + chunk.num_rows}"
        raise DataError(f"--metric {name}: raised {type(error).__name__} at {rows}: {error}") from error
    if values.shape != (chunk.num_rows,) or values.dtype.kind not in "iuf":
        returned = f"{values.dtype} of shape {values.shape} for {chunk.num_rows} rows"
        raise DataError(f"--metric {name}: returned {returned}; return one number for each")
    if values.dtype.kind in "iu" and len(values) and max(int(values.max()), -int(values.min())) > EXACT:
        raise DataError(f"--metric {name}: returned whole numbers beyond 2**53, which float64 rounds; scale them down")
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
