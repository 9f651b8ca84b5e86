"""The data of a run, tokenised as the config asks: all at once, or only what windows reach."""

from dataclasses import dataclass

from ddpsched.config import RunConfig
from ddpsched.errors import ConfigError
from ddpsched.planning.concatenate import UNCUT, SliceTable
from ddpsched.planning.texts import Dataset, Split, load_dataset
from ddpsched.planning.tokenise import OnlineTokens, TokenTable, tokenise
from ddpsched.planning.tokenizer import load_tokenizer, pad_id
from ddpsched.planning.words import embedded_tokenizer


@dataclass(frozen=True)
class Samples:
    """``train`` and ``dev`` give lengths and rows by id; ``dev`` may be absent."""

    dataset: Dataset
    train: TokenTable | OnlineTokens | SliceTable
    dev: TokenTable | SliceTable | None
    vocab_size: int
    pad_id: int


def load_samples(config: RunConfig) -> Samples:
    """Load and tokenise.

    Raises DataError for data that cannot be used, ConfigError where no tokenizer
    is named for a model that brings none.
    """
    data = config.data
    dataset = load_dataset(data, config.seed, config.model.task)
    name = data.tokenizer or (None if config.model.name == "tiny" else config.model.name)
    if data.path is None and data.name is None:
        tokenizer = embedded_tokenizer() if data.tokenizer is None else load_tokenizer(data.tokenizer)
    elif name is None:
        raise ConfigError(
            'model.name = "tiny" brings no tokenizer for texts of your own; set data.tokenizer to a folder with '
            'tokenizer.json or vocab.txt, or to a hub name such as "distilbert-base-uncased"'
        )
    else:
        tokenizer = load_tokenizer(name)
    joined = data.concatenate
    # nothing stands before a first token to predict it from
    least = 2 if config.model.task == "causal_lm" and not joined else 1
    most = UNCUT if joined else data.max_length

    def table(split: Split) -> TokenTable | SliceTable:
        found = tokenise(tokenizer, split.texts, most, prompts=split.prompts, rows=split.rows, least=least)
        return SliceTable(found, data.max_length, data.within_documents) if joined else found

    own, dev = dataset.train, None if dataset.dev is None else table(dataset.dev)
    train: TokenTable | OnlineTokens | SliceTable
    if data.lengths == "online":
        train = OnlineTokens(tokenizer, own.texts, data.max_length, own.prompts, own.rows, least)
    else:
        train = table(own)
    return Samples(dataset, train, dev, tokenizer.get_vocab_size(), pad_id(tokenizer))
