"""The data of a run: the splits of a data set, from a file, a folder, the hub or embedded, and their token ids.

Whatever the source, ``load_dataset`` returns the same checked value: no text and no prompt is blank, and every label is
an integer from 0 to ``num_labels - 1``. ``load_samples`` tokenises it as the config asks: all at once, or as windows
reach it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tokenizers import Tokenizer

from ddpsched.data.config import DataConfig
from ddpsched.data.embedded.sentences import compose
from ddpsched.data.order_file import OrderedFile
from ddpsched.data.quarantine import BadRow, read_usable
from ddpsched.data.row_source import RowSource, file_rows, stored_splits
from ddpsched.data.table_files import WHOLE, Wanted
from ddpsched.data.token_table import UNCUT, OnlineTokens, SliceTable, TokenTable, tokenise
from ddpsched.data.tokenizer import is_text, load_tokenizer, pad_id
from ddpsched.errors import ConfigError, DataError
from ddpsched.step_plan import Ids

NO_TEXT = "is null, blank or no valid text"
NO_GROUP = "is null, and no group"
Task = Literal["classification", "causal_lm"]


@dataclass(frozen=True, eq=False)
class Split:
    """N samples.

    ``labels``: a classifier's, int64 ``(N,)``. ``prompts``: those before a language model's texts, if any. ``rows``:
    each sample's row in the source, counted from 1; None for 1 to N. ``groups``: the number of each sample's group,
    from 0.
    """

    texts: Sequence[str]
    labels: Ids | None = None
    prompts: Sequence[str] | None = None
    rows: Sequence[int] | None = None
    groups: Ids | None = None

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def numbered_groups(self) -> Ids | None:
        """The number of each sample's group, (N,): those that are named, or else of equal prompts, where there are."""
        return numbered(self.prompts) if self.groups is None and self.prompts is not None else self.groups

    def take(self, ids: Ids) -> "Split":
        """Return the samples ``ids``, which keep the numbers of their rows."""
        return Split(
            [self.texts[i] for i in ids],
            None if self.labels is None else self.labels[ids],
            None if self.prompts is None else [self.prompts[i] for i in ids],
            [int(i) + 1 if self.rows is None else self.rows[i] for i in ids],
            None if self.groups is None else self.groups[ids],
        )


@dataclass(frozen=True, eq=False)
class Dataset:
    """The training split, the one for evaluation if there is one, and a line that names the source of both.

    ``rows``: those of the training split's source; None for the embedded sentences. ``quarantined``: rows of both that
    were left out.
    """

    train: Split
    dev: Split | None
    source: str
    rows: RowSource | None = None
    quarantined: tuple[BadRow, ...] = ()


def load_dataset(config: DataConfig, seed: int, task: Task = "classification") -> Dataset:
    """Return the data that ``config`` names; ``seed`` draws the embedded sentences and the rows held out.

    ``path`` is a file, or a folder with a train file or saved by ``datasets``; ``name`` is a data set on the hub;
    neither means the embedded sentences. ``config.dev`` names a file for evaluation that replaces the source's dev
    split; without either, a share ``config.held_out`` of the training rows is evaluated on instead.

    Raises DataError that names the file, the row (1 is the first below the header), the column, the value that cannot
    be used, and the remedy.
    """
    wanted = {"data.text": config.text}
    if task == "classification":
        wanted["data.label"] = config.label
    elif config.prompt is not None:
        wanted["data.prompt"] = config.prompt
    left_out: list[BadRow] = []
    if config.path or config.name:
        rows, beside = stored_splits(config)
        grouped = {} if config.group is None else {"data.group": config.group}
        train = _read(rows, config, wanted | grouped, left_out, config.rows)
        dev = None if beside is None or config.dev else _read(beside, config, wanted, left_out)
        dataset = Dataset(train, dev, rows.name, rows)
    else:
        dataset = _embedded(config, wanted, seed)
    if config.dev:
        file = Path(config.dev).expanduser()
        dataset = replace(
            dataset, dev=_read(file_rows(file), config, wanted, left_out), source=f"{dataset.source}, dev {file}"
        )
    if config.held_out and dataset.dev is None:
        dataset = _held_out(dataset, config.held_out, seed)
    if len(dataset.train) < 2:
        raise DataError(
            f"{dataset.source}: {len(dataset.train)} row{'s' * (len(dataset.train) != 1)}; training needs at least 2"
        )
    return replace(dataset, quarantined=tuple(left_out))


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
    return replace(dataset, train=train, dev=dev, source=source)


def _read(
    rows: RowSource, config: DataConfig, wanted: Wanted, left_out: list[BadRow], limit: int | None = None
) -> Split:
    """Return the first ``limit`` rows, or all; raise DataError where a text, a prompt or a label cannot be used.

    Or add such rows to ``left_out``, as ``config.on_bad`` says.
    """
    if config.on_bad == "skip":
        return _read_usable(rows, config, wanted, left_out, limit)
    chunk = next(rows.chunks(wanted, limit or WHOLE, lambda number: True), None)
    if chunk is None:
        raise DataError(f"{rows.label}: no rows; give at least 2 for training, 1 for evaluation")
    texts = chunk.columns[config.text]
    check_texts(rows.label, config.text, texts)
    grouped = wanted.get("data.group")
    groups = None if grouped is None else _groups(rows.label, grouped, chunk.columns[grouped])
    if prompt := wanted.get("data.prompt"):
        check_texts(rows.label, prompt, chunk.columns[prompt], "write a prompt")
        return Split(texts, prompts=chunk.columns[prompt], groups=groups)
    if "data.label" not in wanted:
        return Split(texts, groups=groups)
    given, allowed = chunk.columns[config.label], range(config.num_labels)
    labels = [_integer(label) for label in given]
    fault = _no_label(config)
    _refuse(rows.label, config.label, given, [label in allowed for label in labels], fault, "correct the label")
    return Split(texts, np.array(labels, dtype=np.int64))


def _read_usable(
    rows: RowSource, config: DataConfig, wanted: Wanted, left_out: list[BadRow], limit: int | None
) -> Split:
    if rows.path is None:
        fault = "is a folder saved by datasets, data.on_bad = 'skip' is for files"
        raise DataError(f"data.path = {rows.name}: {fault}; give a file as data.path, or leave data.on_bad out")

    def fault_of(row: dict[str, Any]) -> str | None:
        for option, column in wanted.items():
            is_label = option == "data.label"
            if is_label and _integer(row[column]) not in range(config.num_labels):
                return f"column {column!r}: {row[column]!r:.80} {_no_label(config)}"
            if option == "data.group":
                if row[column] is None:
                    return f"column {column!r}: {NO_GROUP}"
            elif not is_label and not is_text(row[column]):
                return f"column {column!r}: {row[column]!r:.80} {NO_TEXT}"
        return None

    good, numbers, bad = read_usable(rows.path, wanted, fault_of, limit)
    if not good:
        raise DataError(f"{rows.label}: no rows; give at least 2 for training, 1 for evaluation")
    left_out += bad
    columns = {option: [row[column] for row in good] for option, column in wanted.items()}
    labels = [_integer(label) for label in columns["data.label"]] if "data.label" in columns else None
    return Split(
        columns["data.text"],
        None if labels is None else np.array(labels, dtype=np.int64),
        columns.get("data.prompt"),
        numbers,
        _groups(rows.label, wanted["data.group"], columns["data.group"]) if "data.group" in columns else None,
    )


def _groups(source: str, column: str, values: Sequence[Any]) -> Ids:
    """Return the number of each value, of those that differ. Raises DataError where one is missing."""
    _refuse(source, column, values, [value is not None for value in values], NO_GROUP, "name its group")
    return numbered(values)


def numbered(values: Sequence[Any]) -> Ids:
    """Return the number of each value among those that differ, in the order in which they come."""
    numbers = dict[str, int]()
    return np.array([numbers.setdefault(str(value), len(numbers)) for value in values], dtype=np.int64)


def _no_label(config: DataConfig) -> str:
    return f"is not an integer from 0 to {config.num_labels - 1} (data.num_labels = {config.num_labels})"


def _embedded(config: DataConfig, wanted: Wanted, seed: int) -> Dataset:
    if "data.prompt" in wanted:
        raise DataError(
            f"data.prompt = {config.prompt!r}: the embedded sentences have no prompts; leave it out, or name a data "
            "set with data.path"
        )

    if config.group not in (None, "group"):
        raise DataError(
            f"data.group = {config.group!r}: the embedded sentences have the column 'group' alone, of four sentences "
            "each; write 'group', or name a data set with data.path"
        )

    def composed(size: int, seed: int, limit: int | None = None) -> Split:
        texts, labels = compose(size, seed)
        groups = None if config.group is None else np.arange(len(texts[:limit])) // 4  # four in a row
        return Split(texts[:limit], labels[:limit] if "data.label" in wanted else None, groups=groups)

    train_seed, dev_seed = np.random.SeedSequence(seed).generate_state(2).tolist()
    train, dev = composed(config.size, train_seed, config.rows), composed(max(200, config.size // 8), dev_seed)
    return Dataset(train, dev, f"embedded sentences, {len(train)} train and {len(dev)} dev, seed {seed}")


def check_texts(source: str, column: str, texts: Sequence[Any], remedy: str = "write a text", first: int = 0) -> None:
    """Raise DataError, naming the rows, where a value is blank or not valid text. ``first``: the first row, from 0."""
    _refuse(source, column, texts, [is_text(text) for text in texts], NO_TEXT, remedy, first)


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


@dataclass(frozen=True)
class Samples:
    """The tokenised splits of a data set, which give lengths and rows by id; ``dev`` may be absent."""

    dataset: Dataset
    train: TokenTable | OnlineTokens | SliceTable
    dev: TokenTable | SliceTable | None
    tokenizer: Tokenizer
    pad_id: int

    @property
    def vocab_size(self) -> int:
        """The number of tokens that the tokenizer has."""
        return self.tokenizer.get_vocab_size()

    def fingerprints(self) -> dict[str, str]:
        """Return what identifies the training data, and the tokenizer; the embedded sentences follow from a config."""
        rows = self.dataset.rows
        tokenizer = blake2b(self.tokenizer.to_str().encode(), digest_size=16).hexdigest()
        return {"data": "embedded" if rows is None else rows.fingerprint(), "tokenizer": tokenizer}

    @property
    def num_dropped_tokens(self) -> int | None:
        """The number of tokens of joined documents that fill no slice; None where documents are not joined."""
        return self.train.num_dropped if isinstance(self.train, SliceTable) else None


def load_samples(
    data: DataConfig,
    *,
    seed: int = 0,
    task: Task = "classification",
    model: str = "tiny",
    order_path: str | None = None,
) -> Samples:
    """Load and tokenise the data that a config names.

    ``model``: the model whose tokenizer is used where ``data`` names none. ``order_path``: an ordered file that must be
    of this data. Raises DataError for data that cannot be used, ConfigError where no tokenizer is named and the model
    has none.
    """
    dataset = load_dataset(data, seed, task)
    tokenizer = tokenizer_of(data, model)
    # nothing precedes a first token to predict it from
    least = 2 if task == "causal_lm" and not data.concatenate else 1
    most = UNCUT if data.concatenate else data.max_length

    def table(split: Split) -> TokenTable | SliceTable:
        rows = split.rows or range(1, len(split) + 1)
        tokens = tokenise(tokenizer, split.texts, most, prompts=split.prompts, rows=rows, least=least)
        return SliceTable(tokens, data.max_length, data.within_documents) if data.concatenate else tokens

    dev, split = None if dataset.dev is None else table(dataset.dev), dataset.train
    train: TokenTable | OnlineTokens | SliceTable
    if data.lengths == "online":
        train = OnlineTokens(tokenizer, split.texts, data.max_length, split.prompts, split.rows, least)
    else:
        train = table(split)
    if order_path is not None:
        _check_order(order_path, dataset)
    return Samples(dataset, train, dev, tokenizer, pad_id(tokenizer))


def tokenizer_of(data: DataConfig, model: str) -> Tokenizer:
    """Return the tokenizer named, or the embedded sentences', or the model's; ConfigError where there is none."""
    if data.tokenizer or (data.path is None and data.name is None):
        return load_tokenizer(data.tokenizer)
    if model == "tiny":
        raise ConfigError(
            'model.name = "tiny" has no tokenizer for your texts; set data.tokenizer to a folder with tokenizer.json '
            'or vocab.txt, or to a hub name such as "distilbert-base-uncased"'
        )
    return load_tokenizer(model)


def _check_order(path: str, dataset: Dataset) -> None:
    """Raise DataError where an ordered file is of other data."""
    about = OrderedFile.open(Path(path).expanduser()).about
    if dataset.rows is None:
        raise DataError(f"order.path = {path}: is an order of {about.source}, but the data are the embedded sentences")
    if about.data != (fingerprint := dataset.rows.fingerprint()):
        raise DataError(
            f"order.path = {path}: is an order of other data, {about.source} ({about.data}), than {dataset.rows.name} "
            f"({fingerprint}); write one with `ddpsched sort {dataset.rows.name} --output FILE`"
        )
