"""The splits of a data set: from a file, a folder, the hub, or the embedded sentences.

Whatever the source, ``load_dataset`` returns the same checked value: no text and no prompt is blank, and every label is
an integer from 0 to ``num_labels - 1``.
"""

from collections.abc import Sequence
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
    """N samples.

    ``labels``: a classifier's, int64 ``(N,)``. ``prompts``: those before a language model's texts, if any. ``rows``:
    each sample's row in the source, counted from 1; None for 1 to N.
    """

    texts: Sequence[str]
    labels: Ids | None = None
    prompts: Sequence[str] | None = None
    rows: Sequence[int] | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, ids: Ids) -> "Split":
        """Return the samples ``ids``, which keep the numbers of their rows."""
        return Split(
            [self.texts[i] for i in ids],
            None if self.labels is None else self.labels[ids],
            None if self.prompts is None else [self.prompts[i] for i in ids],
            [int(i) + 1 if self.rows is None else self.rows[i] for i in ids],
        )


@dataclass(frozen=True, eq=False)
class Dataset:
    """The training split, the one for evaluation if there is one, and a line that names the source of both.

    ``rows``: those of the training split's source; None for the embedded sentences.
    """

    train: Split
    dev: Split | None
    source: str
    rows: RowSource | None = None


def load_dataset(config: DataConfig, seed: int, task: Task = "classification") -> Dataset:
    """Return the data that ``config`` names; ``seed`` draws the embedded sentences and the rows held out.

    ``path`` is a file, or a folder with a train file or saved by ``datasets``; ``name`` is a data set on the hub;
    neither means the embedded sentences. ``config.dev`` names a file for evaluation that replaces the source's dev
    split; without either, a share ``config.held_out`` of the training rows is evaluated on instead.

    Raises DataError that names the file, the row (1 is the first below the header), the column, the value that cannot
    be used, and the remedy.
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
    """Return the data with a share of the training rows, at least one, moved to the dev split, in their order."""
    size = len(dataset.train)
    count = max(1, round(share * size))
    if size - count < 2:
        raise DataError(
            f"{dataset.source}: data.held_out = {share} takes {count} of {size} rows; training needs at least 2 of them"
        )
    mixed = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,))).permutation(size)
    dev, train = (dataset.train.take(np.sort(ids)) for ids in (mixed[:count], mixed[count:]))
    source = f"{dataset.source}, {count} of {size} rows held out (seed {seed})"
    return Dataset(train, dev, source, dataset.rows)


class _Loader:
    """The reader of the columns that ``task`` needs, from any source."""

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
            return self._splits(load_saved(path), str(path), path.name)
        dev = None
        if path.stem == "train" and not self._config.dev:
            siblings = (path.with_name(name + path.suffix) for name in DEV_NAMES)
            dev = next((self.file(file) for file in siblings if file.exists()), None)
        return Dataset(self.file(path, self._config.rows), dev, str(path), file_rows(path))

    def file(self, file: Path, limit: int | None = None) -> Split:
        """Return the first ``limit`` rows, or all of them."""
        columns = read_columns(file, self._wanted)
        return self._checked({name: values[:limit] for name, values in columns.items()}, str(file))

    def hub(self) -> Dataset:
        return self._splits(load_hub(self._config), hub_name(self._config))

    def _splits(self, loaded: Any, source: str, short: str = "") -> Dataset:
        """Return the splits of a ``datasets.Dataset``, or of a ``DatasetDict`` with a train split."""
        train = self._split(training_split(loaded, source), f"{source}, train", self._config.rows)
        splits = loaded if isinstance(loaded, dict) and not self._config.dev else {}
        dev = next((self._split(splits[name], f"{source}, {name}") for name in DEV_NAMES if name in splits), None)
        return Dataset(train, dev, source, split_rows(loaded, source, short))

    def _split(self, rows: Any, source: str, limit: int | None = None) -> Split:
        require_columns(source, rows.column_names, self._wanted)
        table = rows.with_format("arrow")[:limit]
        return self._checked({name: table.column(name).to_pylist() for name in self._wanted.values()}, source)

    def _checked(self, columns: Columns, source: str) -> Split:
        """Return the columns as a ``Split``; raise DataError where a text, a prompt or a label cannot be used."""
        config = self._config
        texts = columns[config.text]
        if not texts:
            raise DataError(f"{source}: no rows; give at least 2 for training, 1 for evaluation")
        check_texts(source, config.text, texts)
        if prompt := self._wanted.get("data.prompt"):
            check_texts(source, prompt, columns[prompt], "write a prompt")
            return Split(texts, prompts=columns[prompt])
        if "data.label" not in self._wanted:
            return Split(texts)
        labels, allowed = [_integer(label) for label in columns[config.label]], range(config.num_labels)
        fault = f"is not an integer from 0 to {allowed[-1]} (data.num_labels = {config.num_labels})"
        valid = [label in allowed for label in labels]
        _refuse(source, config.label, columns[config.label], valid, fault, "correct the label")
        return Split(texts, np.array(labels, dtype=np.int64))

    def embedded(self, seed: int) -> Dataset:
        if "data.prompt" in self._wanted:
            raise DataError(
                f"data.prompt = {self._config.prompt!r}: the embedded sentences have no prompts; leave it out, or name "
                "a data set with data.path"
            )

        def composed(size: int, seed: int, limit: int | None = None) -> Split:
            texts, labels = compose(size, seed)
            return Split(texts[:limit], labels[:limit] if "data.label" in self._wanted else None)

        size = self._config.size
        train_seed, dev_seed = np.random.SeedSequence(seed).generate_state(2).tolist()
        train, dev = composed(size, train_seed, self._config.rows), composed(max(200, size // 8), dev_seed)
        return Dataset(train, dev, f"embedded sentences, {len(train)} train and {len(dev)} dev, seed {seed}")


def check_texts(source: str, column: str, texts: Sequence[Any], remedy: str = "write a text", first: int = 0) -> None:
    """Raise DataError, naming the rows, where a value is blank or not valid text. ``first``: the first row, from 0."""
    valid = [
        isinstance(text, str) and bool(text.strip()) and text.encode(errors="ignore").decode() == text for text in texts
    ]
    _refuse(source, column, texts, valid, "is null, blank or no valid text", remedy, first)


def _refuse(
    source: str, column: str, values: Sequence[Any], valid: Sequence[bool], fault: str, remedy: str, first: int = 0
) -> None:
    bad = [row for row, fits in enumerate(valid) if not fits]
    if bad:
        rows = ", ".join(str(first + row + 1) for row in bad[:5]) + (", ..." if len(bad) > 5 else "")
        raise DataError(
            f"{source}, row {first + bad[0] + 1}, column {column!r}: {values[bad[0]]!r:.80} {fault}; "
            f"{len(bad)} of {len(values)} rows are like this ({rows}): {remedy}, or remove the rows"
        )


def _integer(label: Any) -> int | None:
    """Return ``label`` as an integer, also from text, which a TSV or CSV holds; None where it is none."""
    try:
        return int(label) if isinstance(label, int | str) and not isinstance(label, bool) else None
    except ValueError:
        return None
