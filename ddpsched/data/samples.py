"""The data of a run, tokenised as the config asks: all at once, or only what windows reach."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from tokenizers import Tokenizer

from ddpsched.data.config import DataConfig
from ddpsched.data.datasets import Dataset, Split, load_dataset
from ddpsched.data.embedded.vocabulary import embedded_tokenizer
from ddpsched.data.order_file import OrderedFile
from ddpsched.data.slices import UNCUT, SliceTable
from ddpsched.data.token_table import OnlineTokens, TokenTable, tokenise
from ddpsched.data.tokenizer import load_tokenizer, pad_id
from ddpsched.errors import ConfigError, DataError
from ddpsched.plan import Ids


@dataclass(frozen=True)
class Samples:
    """``train`` and ``dev`` give lengths and rows by id; ``dev`` may be absent."""

    dataset: Dataset
    train: TokenTable | OnlineTokens | SliceTable
    dev: TokenTable | SliceTable | None
    vocab_size: int
    pad_id: int

    @property
    def num_dropped_tokens(self) -> int | None:
        """Tokens of joined documents that fill no whole slice; None where documents are not joined."""
        return self.train.num_dropped if isinstance(self.train, SliceTable) else None


def load_samples(
    data: DataConfig,
    *,
    seed: int = 0,
    task: Literal["classification", "causal_lm"] = "classification",
    model: str = "tiny",
    order_path: str | None = None,
) -> Samples:
    """Load and tokenise.

    ``model``: whose tokenizer is used where ``data`` names none. ``order_path``: an ordered file that must be of this
    data. Raises DataError for data that cannot be used, ConfigError where no tokenizer is named for a model that
    brings none.
    """
    dataset = load_dataset(data, seed, task)
    tokenizer = tokenizer_of(data, model)
    joined = data.concatenate
    # nothing stands before a first token to predict it from
    least = 2 if task == "causal_lm" and not joined else 1
    most = UNCUT if joined else data.max_length

    def table(split: Split) -> TokenTable | SliceTable:
        found = tokenise(tokenizer, split.texts, most, prompts=split.prompts, rows=split.rows, least=least)
        if joined:
            return SliceTable(found, data.max_length, data.within_documents)
        return replace(found, rows=_row_numbers(split))

    own, dev = dataset.train, None if dataset.dev is None else table(dataset.dev)
    train: TokenTable | OnlineTokens | SliceTable
    if data.lengths == "online":
        train = OnlineTokens(tokenizer, own.texts, data.max_length, own.prompts, own.rows, least)
        train.rows = _row_numbers(own)
    else:
        train = table(own)
    if order_path is not None:
        _check_order(order_path, dataset)
    return Samples(dataset, train, dev, tokenizer.get_vocab_size(), pad_id(tokenizer))


def tokenizer_of(data: DataConfig, model: str) -> Tokenizer:
    """The one named, else the model's, else of the embedded sentences their own; ConfigError where there is none."""
    name = data.tokenizer or (None if model == "tiny" else model)
    if data.path is None and data.name is None:
        return embedded_tokenizer() if data.tokenizer is None else load_tokenizer(data.tokenizer)
    if name is None:
        raise ConfigError(
            'model.name = "tiny" brings no tokenizer for texts of your own; set data.tokenizer to a folder with '
            'tokenizer.json or vocab.txt, or to a hub name such as "distilbert-base-uncased"'
        )
    return load_tokenizer(name)


def _row_numbers(split: Split) -> Ids:
    """Of each sample the row of the source, from 0."""
    return np.arange(len(split)) if split.rows is None else np.array(split.rows, dtype=np.int64) - 1


def _check_order(path: str, dataset: Dataset) -> None:
    """DataError where the ordered file is of other data."""
    about = OrderedFile.open(Path(path).expanduser()).about
    if dataset.rows is None:
        raise DataError(f"order.path = {path}: is an order of {about.source}, but the data are the embedded sentences")
    if about.data != (own := dataset.rows.fingerprint()):
        raise DataError(
            f"order.path = {path}: is an order of other data, {about.source} ({about.data}), than {dataset.rows.name} "
            f"({own}); write one with `ddpsched sort {dataset.rows.name} --output FILE`"
        )
