"""The data of a run, tokenised as the config asks: all at once, or as windows reach it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from tokenizers import Tokenizer

from ddpsched.data.config import DataConfig
from ddpsched.data.datasets import Dataset, Split, load_dataset
from ddpsched.data.order_file import OrderedFile
from ddpsched.data.slices import UNCUT, SliceTable
from ddpsched.data.token_table import OnlineTokens, TokenTable, tokenise
from ddpsched.data.tokenizer import load_tokenizer, pad_id
from ddpsched.errors import ConfigError, DataError
from ddpsched.plan import Ids


@dataclass(frozen=True)
class Samples:
    """The tokenised splits of a data set, which give lengths and rows by id; ``dev`` may be absent."""

    dataset: Dataset
    train: TokenTable | OnlineTokens | SliceTable
    dev: TokenTable | SliceTable | None
    vocab_size: int
    pad_id: int

    @property
    def num_dropped_tokens(self) -> int | None:
        """The number of tokens of joined documents that fill no slice; None where documents are not joined."""
        return self.train.num_dropped if isinstance(self.train, SliceTable) else None


def load_samples(
    data: DataConfig,
    *,
    seed: int = 0,
    task: Literal["classification", "causal_lm"] = "classification",
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
        tokens = tokenise(tokenizer, split.texts, most, prompts=split.prompts, rows=split.rows, least=least)
        if data.concatenate:
            return SliceTable(tokens, data.max_length, data.within_documents)
        return replace(tokens, rows=_row_numbers(split))

    dev = None if dataset.dev is None else table(dataset.dev)
    train: TokenTable | OnlineTokens | SliceTable
    if data.lengths == "online":
        split = dataset.train
        train = OnlineTokens(tokenizer, split.texts, data.max_length, split.prompts, split.rows, least)
        train.rows = _row_numbers(split)
    else:
        train = table(dataset.train)
    if order_path is not None:
        _check_order(order_path, dataset)
    return Samples(dataset, train, dev, tokenizer.get_vocab_size(), pad_id(tokenizer))


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


def _row_numbers(split: Split) -> Ids:
    """Return the row of each sample in the source, from 0."""
    return np.arange(len(split)) if split.rows is None else np.array(split.rows, dtype=np.int64) - 1


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
