"""The request of a sort, and the measurement of a chunk of rows."""

from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from ddpsched.config import RunConfig, apply_overrides, load, parse
from ddpsched.data.row_source import NUMBERS, RowSource, number_rows, training_rows
from ddpsched.data.samples import check_texts, tokenizer_of
from ddpsched.data.table_files import READERS, Chunk
from ddpsched.data.tokenizer import Encoder
from ddpsched.errors import ConfigError, DataError
from ddpsched.output_file import check_output
from ddpsched.sort.metrics import Metric, Rows, Values, column_values, metrics_of


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
class Work:
    """The data and metrics of a sort. ``encoder``: None where no metric needs tokens."""

    config: RunConfig
    source: RowSource
    metrics: list[Metric]
    encoder: Encoder | None
    fingerprint: str
    how: str

    @classmethod
    def of(cls, request: Request) -> "Work":
        """Open the data of a request; ConfigError or DataError where the request cannot be answered."""
        check_output(request.output, request.overwrite, "order.npy")
        if request.output.suffix != ".npy":
            raise ConfigError(f"--output {request.output}: the output is a numpy array; give it the suffix .npy")
        path = Path(request.data).expanduser()
        if path.suffix.lower() in NUMBERS:
            return cls._of_numbers(request, path)
        config = _config(request)
        source = training_rows(config.data)
        if source is None:
            raise ConfigError(f"{request.data}: names no data set; set data.path or data.name in it")
        metrics = metrics_of(request.metrics or ("length",), config)
        encoder, how = None, []
        if any(metric.tokens for metric in metrics):
            tokenizer = tokenizer_of(config.data, config.model.name)
            least = 2 if config.model.task == "causal_lm" else 1
            encoder = Encoder(tokenizer, config.data.max_length, config.data.prompt is not None, least)
            digest = blake2b(tokenizer.to_str().encode(), digest_size=8).hexdigest()
            how = [f"tokens by {digest}, at most {config.data.max_length}"]
        how += [f"{metric.name}: {metric.version}" for metric in metrics if metric.version]
        return cls(config, source, metrics, encoder, source.fingerprint(), "; ".join(how))

    @classmethod
    def _of_numbers(cls, request: Request, path: Path) -> "Work":
        if request.metrics or request.words:
            given = ", ".join((*request.metrics, *request.words))
            raise ConfigError(f"{path} holds numbers, which are the metric; leave out {given}")
        source = number_rows(path)
        metric = Metric("value", lambda rows: column_values(rows.chunk, "value"), wanted={"DATA": "value"})
        return cls(parse({"steps": 1}), source, [metric], None, source.fingerprint(), "")

    def identity(self, chunk: int) -> dict[str, Any]:
        """Return everything that parts of ``chunk`` rows depend on."""
        names = [metric.name for metric in self.metrics]
        columns = [self.config.data.text, self.config.data.prompt, self.config.data.label]
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
        wanted: dict[str, str] = {}
        if self.encoder is not None:
            data = self.config.data
            wanted = {"data.text": data.text} | ({} if data.prompt is None else {"data.prompt": data.prompt})
        for metric in self.metrics:
            wanted |= metric.wanted or {}
        return wanted

    def measured(self, chunk: Chunk) -> dict[str, Values]:
        """Return the part of a chunk: each metric's values by its number; tokens where a metric needs all of them."""
        encoded = None if self.encoder is None else self.encoder.encode(*self._texts(chunk))
        rows = Rows(chunk, encoded)
        part = {str(n): metric.values(rows) for n, metric in enumerate(self.metrics) if metric.values is not None}
        if self.counts_tokens:
            part |= {"flat": rows.tokens.flat, "lengths": rows.tokens.lengths}
        cut = 0 if encoded is None else encoded.num_truncated
        return part | {"num_rows": np.array(chunk.num_rows), "num_truncated": np.array(cut)}

    def _texts(self, chunk: Chunk) -> tuple[list[str], list[str] | None, range]:
        data = self.config.data
        for name in (data.text, data.prompt):
            if name is not None:
                if name not in chunk.columns:
                    raise DataError(f"{self.source.name}: no column {name!r}; it has {', '.join(chunk.columns)}")
                check_texts(self.source.name, name, chunk.columns[name], first=chunk.first)
        prompts = None if data.prompt is None else chunk.columns[data.prompt]
        return chunk.columns[data.text], prompts, range(chunk.first + 1, chunk.first + chunk.num_rows + 1)


def _config(request: Request) -> RunConfig:
    """Return the config of a run's TOML, or of a data set's path, or of its name on the hub."""
    if request.data.endswith(".toml"):
        return load(request.data, request.words)
    path = Path(request.data).expanduser()
    named = not path.exists() and path.suffix not in READERS and not request.data.startswith((".", "/", "~"))
    table = {"steps": 1, "data": {"name" if named else "path": request.data}}
    return parse(apply_overrides(table, request.words), source="ddpsched sort")
