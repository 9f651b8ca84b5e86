"""Where samples come from: a file, a folder, the hub, or the embedded sentences.

Whatever the source, ``load_dataset`` gives the same checked value: every text
and every prompt says something, every label is an integer from 0 to ``num_labels - 1``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ddpsched.data.config import DataConfig
from ddpsched.data.embedded.sentences import compose
from ddpsched.data.row_source import (
    RowSource,
    file_rows,
    hub_name,
    load_hub,
    load_saved,
    locate,
    saved_rows,
    split_rows,
    training_split,
)
from ddpsched.data.table_files import Columns, read_columns, require_columns
from ddpsched.errors import DataError

DEV_NAMES = ("dev", "validation", "val")
Ids = npt.NDArray[np.int64]
Task = Literal["classification", "causal_lm"]


@dataclass(frozen=True, eq=False)
class Split:
    """N samples: ``texts``; a classifier's ``labels``, int64 ``(N,)``; the ``prompts`` before a language model's texts,
    if there are any. ``rows``: each one's row in the source, counted from 1; None for 1 to N.
    """

    texts: Sequence[str]
    labels: Ids | None = None
    prompts: Sequence[str] | None = None
    rows: Sequence[int] | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, ids: Ids) -> "Split":
        """The samples ``ids``, which keep the numbers of their rows."""
        return Split(
            [self.texts[i] for i in ids],
            None if self.labels is None else self.labels[ids],
            None if self.prompts is None else [self.prompts[i] for i in ids],
            [int(i) + 1 if self.rows is None else self.rows[i] for i in ids],
        )


@dataclass(frozen=True, eq=False)
class Dataset:
    """The training split, one for evaluation where there is one, and a line that says where both come from.

    ``rows``: those of the source that training was taken from; None for the embedded sentences.
    """

    train: Split
    dev: Split | None
    source: str
    rows: RowSource | None = None


def load_dataset(config: DataConfig, seed: int, task: Task = "classification") -> Dataset:
    """The data that ``config`` names; ``seed`` draws the embedded sentences and what is held out.

    ``path`` is a file, or a folder with a train file or saved by ``datasets``;
    ``name`` is a data set on the hub; neither means the embedded sentences.
    ``config.dev`` names a file for evaluation in place of the source's own; without
    either, a share ``config.held_out`` of the training rows is evaluated on instead.

    DataError names the file, the row (1 is the first below the header), the
    column and the value that cannot be used, and what to do.
    """
    load = _Loader(config, task)
    if config.path:
        dataset = load.path(Path(config.path).expanduser())
    elif config.name:
        dataset = load.hub()
    else:
        dataset = load.embedded(seed)
    if config.dev:
        file = Path(config.dev).expanduser()
        dataset = replace(dataset, dev=load.file(file), source=f"{dataset.source}, dev {file}")
    if config.held_out and dataset.dev is None:
        dataset = _held_out(dataset, config.held_out, seed)
    if len(dataset.train) < 2:
        raise DataError(
            f"{dataset.source}: {len(dataset.train)} row{'s' * (len(dataset.train) != 1)}; training needs at least 2"
        )
    return dataset


def _held_out(dataset: Dataset, share: float, seed: int) -> Dataset:
    """A share of the training rows, at least one, moved to the dev split; those that stay keep their order."""
    size = len(dataset.train)
    count = max(1, round(share * size))
    if size - count < 2:
        raise DataError(
            f"{dataset.source}: data.held_out = {share} takes {count} of {size} rows; training needs at least 2 of them"
        )
    mixed = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,))).permutation(size)
    out, kept = np.sort(mixed[:count]), np.sort(mixed[count:])
    source = f"{dataset.source}, {count} of {size} rows held out (seed {seed})"
    return Dataset(dataset.train.take(kept), dataset.train.take(out), source, dataset.rows)


class _Loader:
    """The columns that ``task`` needs, from any source."""

    def __init__(self, config: DataConfig, task: Task) -> None:
        self._config = config
        self._wanted = {"data.text": config.text}
        if task == "classification":
            self._wanted["data.label"] = config.label
        elif config.prompt is not None:
            self._wanted["data.prompt"] = config.prompt

    def path(self, path: Path) -> Dataset:
        path = locate(path)
        if path.is_dir():
            loaded = load_saved(path)
            return self._splits(loaded, str(path), saved_rows(path, loaded))
        dev = _beside(path) if path.stem == "train" and not self._config.dev else None
        train = self.file(path, self._config.rows)
        return Dataset(train, self.file(dev) if dev else None, str(path), file_rows(path))

    def file(self, file: Path, limit: int | None = None) -> Split:
        """The first ``limit`` rows, or all of them."""
        found = read_columns(file, self._wanted)
        return self._checked({name: values[:limit] for name, values in found.items()}, str(file))

    def hub(self) -> Dataset:
        loaded, source = load_hub(self._config), hub_name(self._config)
        return self._splits(loaded, source, split_rows(training_split(loaded, source), source))

    def _splits(self, loaded: Any, source: str, origin: RowSource) -> Dataset:
        """``loaded``: a ``datasets.Dataset``, or a ``DatasetDict`` with a train split."""
        rows = training_split(loaded, source)
        train = self._split(rows, f"{source}, train", self._config.rows)
        splits = loaded if isinstance(loaded, dict) else {}
        dev = next((name for name in DEV_NAMES if name in splits and not self._config.dev), None)
        held = self._split(splits[dev], f"{source}, {dev}") if dev else None
        return Dataset(train, held, source, origin)

    def _split(self, rows: Any, source: str, limit: int | None = None) -> Split:
        require_columns(source, rows.column_names, self._wanted)
        table = rows.with_format("arrow")[:limit]
        return self._checked({name: table.column(name).to_pylist() for name in self._wanted.values()}, source)

    def _checked(self, columns: Columns, source: str) -> Split:
        """The columns as a ``Split``; DataError where a text, a prompt or a label cannot be used."""
        config = self._config
        texts = columns[config.text]
        if not texts:
            raise DataError(f"{source}: no rows; give at least 2 for training, 1 for evaluation")
        fault = "is null, blank or no valid text"
        refuse(source, config.text, texts, said, fault, "write a text")
        if "data.prompt" in self._wanted:
            prompts = columns[self._wanted["data.prompt"]]
            refuse(source, self._wanted["data.prompt"], prompts, said, fault, "write a prompt")
            return Split(texts, prompts=prompts)
        if "data.label" not in self._wanted:
            return Split(texts)
        labels, allowed = columns[config.label], range(config.num_labels)
        not_one = f"is not an integer from 0 to {allowed[-1]} (data.num_labels = {config.num_labels})"
        refuse(source, config.label, labels, lambda label: _integer(label) in allowed, not_one, "correct the label")
        return Split(texts, np.array([_integer(label) for label in labels], dtype=np.int64))

    def embedded(self, seed: int) -> Dataset:
        if "data.prompt" in self._wanted:
            raise DataError(
                f"data.prompt = {self._config.prompt!r}: the embedded sentences have no prompts; leave it out, or name "
                "a data set with data.path"
            )
        size, limit = self._config.size, self._config.rows
        train_seed, dev_seed = np.random.SeedSequence(seed).generate_state(2).tolist()
        (texts, labels), (dev_texts, dev_labels) = compose(size, train_seed), compose(max(200, size // 8), dev_seed)
        train, dev = Split(texts[:limit], labels[:limit]), Split(dev_texts, dev_labels)
        if "data.label" not in self._wanted:
            train, dev = Split(train.texts), Split(dev.texts)
        return Dataset(train, dev, f"embedded sentences, {len(train)} train and {len(dev)} dev, seed {seed}")


def _beside(train: Path) -> Path | None:
    siblings = (train.with_name(name + train.suffix) for name in DEV_NAMES)
    return next((file for file in siblings if file.exists()), None)


def refuse(
    source: str,
    column: str,
    values: Sequence[Any],
    fits: Callable[[Any], bool],
    fault: str,
    remedy: str,
    first: int = 0,
) -> None:
    """DataError, with their rows, where some values do not fit; ``first``: the first one's row, from 0."""
    bad = [row for row, value in enumerate(values, first + 1) if not fits(value)]
    if bad:
        rows = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
        raise DataError(
            f"{source}, row {bad[0]}, column {column!r}: {values[bad[0] - first - 1]!r:.80} {fault}; "
            f"{len(bad)} of {len(values)} rows are like this ({rows}): {remedy}, or remove the rows"
        )


def said(text: Any) -> bool:
    """Whether it is a text that says something."""
    return isinstance(text, str) and bool(text.strip()) and text.encode(errors="ignore").decode() == text


def _integer(label: Any) -> int | None:
    """``label`` as an integer; a TSV or CSV has it as text."""
    if isinstance(label, str):
        try:
            return int(label)
        except ValueError:
            return None
    return label if isinstance(label, int) and not isinstance(label, bool) else None
