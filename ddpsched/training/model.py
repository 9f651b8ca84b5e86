"""Which sequence classifier is trained."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from huggingface_hub import constants
from transformers import AutoConfig, AutoModelForSequenceClassification, BertConfig, DistilBertConfig, PreTrainedConfig

from ddpsched.config import ModelConfig
from ddpsched.errors import ConfigError, DataError
from ddpsched.planning.hub import offline_unless_reachable

# Shapes that need no network when weights are random.
GEOMETRIES: dict[str, Callable[..., PreTrainedConfig]] = {
    "tiny": partial(DistilBertConfig, dim=64, n_layers=2, n_heads=4, hidden_dim=256, max_position_embeddings=512),
    "distilbert-base-uncased": partial(DistilBertConfig, dim=768, n_layers=6, n_heads=12, hidden_dim=3072),
    "nreimers/MiniLM-L6-H384-uncased": partial(
        BertConfig, hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    ),
}


def build_model(config: ModelConfig, num_labels: int, vocab_size: int, pad_id: int) -> torch.nn.Module:
    """The model in float32 on the CPU, its random part drawn from torch's current seed.

    Raises ConfigError where a vocabulary does not fit the pretrained embeddings and
    DataError where a name can be found neither locally nor on the hub.
    """
    if config.weights == "random" and config.name in GEOMETRIES:
        shape = GEOMETRIES[config.name](vocab_size=vocab_size, pad_token_id=pad_id, num_labels=num_labels)
        _set_dropout(shape, config.dropout)
        return AutoModelForSequenceClassification.from_config(shape)
    if config.name == "tiny":
        raise ConfigError('model.name = "tiny" has no pretrained weights; set model.weights = "random"')
    try:
        return _from_hub_or_folder(config, num_labels, vocab_size, pad_id)
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise DataError(
            f"model.name = {config.name!r} could not be loaded ({_first_line(error)}). Without a network there are two "
            "ways out: give model.name the path of a local folder that holds config.json and model.safetensors, or set "
            f'model.weights = "random" with one of the built-in shapes {sorted(GEOMETRIES)}'
        ) from None


def first_position(model: torch.nn.Module) -> int:
    """The position of a sample's first token: 0, or behind that of padding in models that give it one (RoBERTa)."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            return int(module.padding_idx) + 1
    return 0


def num_positions(model: Any) -> int | None:
    """Most tokens of a sample that the model has positions for; None where it names no limit."""
    limit = getattr(model.config, "max_position_embeddings", None)
    return None if limit is None else limit - first_position(model)


def _from_hub_or_folder(config: ModelConfig, num_labels: int, vocab_size: int, pad_id: int) -> torch.nn.Module:
    with offline_unless_reachable(constants):
        found = AutoConfig.from_pretrained(config.name, num_labels=num_labels, trust_remote_code=False)
        _set_dropout(found, config.dropout)
        if config.weights == "random":
            found.vocab_size, found.pad_token_id = max(found.vocab_size, vocab_size), pad_id
            return AutoModelForSequenceClassification.from_config(found)
        model = AutoModelForSequenceClassification.from_pretrained(
            config.name, config=found, dtype=torch.float32, use_safetensors=True, trust_remote_code=False
        )
    if vocab_size > model.config.vocab_size:
        raise ConfigError(
            f"the tokenizer has {vocab_size} tokens, the weights of {config.name!r} only {model.config.vocab_size}; "
            "set data.tokenizer to the tokenizer that belongs to the model"
        )
    return model


def _set_dropout(found: PreTrainedConfig, rate: float | None) -> None:
    if rate is None:
        return
    names: list[str] = [key for key in found.to_dict() if "dropout" in key and "layer" not in key]
    for name in names:
        setattr(found, name, rate)


def _first_line(error: Exception) -> str:
    text: Any = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
