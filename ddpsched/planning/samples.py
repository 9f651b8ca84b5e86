"""The data of a run, tokenised as the config asks: all at once, or only what windows reach."""

from dataclasses import dataclass

from ddpsched.config import RunConfig
from ddpsched.errors import ConfigError
from ddpsched.planning.texts import Dataset, load_dataset
from ddpsched.planning.tokenise import OnlineTokens, TokenTable, load_tokenizer, pad_id, tokenise
from ddpsched.planning.words import embedded_tokenizer


@dataclass(frozen=True)
class Samples:
    """``train`` and ``dev`` give lengths and rows by id; ``dev`` may be absent."""

    dataset: Dataset
    train: TokenTable | OnlineTokens
    dev: TokenTable | None
    vocab_size: int
    pad_id: int


def load_samples(config: RunConfig) -> Samples:
    """Load and tokenise.

    Raises DataError for data that cannot be used, ConfigError where no tokenizer
    is named for a model that brings none.
    """
    data = config.data
    dataset = load_dataset(data, config.seed)
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
    train: TokenTable | OnlineTokens
    if data.lengths == "online":
        train = OnlineTokens(tokenizer, dataset.train.texts, data.max_length)
    else:
        train = tokenise(tokenizer, dataset.train.texts, data.max_length)
    dev = None if dataset.dev is None else tokenise(tokenizer, dataset.dev.texts, data.max_length)
    return Samples(dataset, train, dev, tokenizer.get_vocab_size(), pad_id(tokenizer))
