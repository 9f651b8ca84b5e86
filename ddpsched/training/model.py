"""The model that is trained: a sequence classifier, or a causal language model."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from huggingface_hub import constants
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertConfig,
    DistilBertConfig,
    GPT2Config,
    PreTrainedConfig,
)

from ddpsched.config import ModelConfig
from ddpsched.data.hub import offline_unless_reachable
from ddpsched.errors import ConfigError, DataError

# Shapes that need no network when weights are random, by task. GPT-2's default ids of a text's ends lie beyond most
# vocabularies.
_GPT2 = partial(GPT2Config, bos_token_id=None, eos_token_id=None)
GEOMETRIES: dict[str, dict[str, Callable[..., PreTrainedConfig]]] = {
    "classification": {
        "tiny": partial(DistilBertConfig, dim=64, n_layers=2, n_heads=4, hidden_dim=256, max_position_embeddings=512),
        "distilbert-base-uncased": partial(DistilBertConfig, dim=768, n_layers=6, n_heads=12, hidden_dim=3072),
        "nreimers/MiniLM-L6-H384-uncased": partial(
            BertConfig, hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
        ),
    },
    "causal_lm": {
        "tiny": partial(_GPT2, n_embd=64, n_layer=2, n_head=4, n_positions=512),
        "distilgpt2": partial(_GPT2, n_layer=6),
        "gpt2": _GPT2,
    },
}
HEADS: dict[str, Any] = {"classification": AutoModelForSequenceClassification, "causal_lm": AutoModelForCausalLM}


def build_model(config: ModelConfig, num_labels: int, vocab_size: int, pad_id: int) -> torch.nn.Module:
    """Return the model in float32 on the CPU, its random part drawn from torch's current seed.

    ``num_labels``: of a classifier. ``vocab_size``, ``pad_id``: the tokenizer's. Raises ConfigError where a vocabulary
    does not fit the pretrained embeddings, DataError where a name can be found neither locally nor on the hub.
    """
    shapes, options = GEOMETRIES[config.task], {"num_labels": num_labels} if config.task == "classification" else {}
    if config.weights == "random" and config.name in shapes:
        shape = shapes[config.name](vocab_size=vocab_size, pad_token_id=pad_id, **options)
        return HEADS[config.task].from_config(_as_trained(shape, config))
    if config.name == "tiny":
        raise ConfigError('model.name = "tiny" has no pretrained weights; set model.weights = "random"')
    try:
        return _from_hub_or_folder(config, vocab_size, pad_id, options)
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        first_line = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise DataError(
            f"model.name = {config.name!r} could not be loaded ({first_line}). Without a network there are two "
            "ways out: give model.name the path of a local folder that holds config.json and model.safetensors, or set "
            f'model.weights = "random" with one of the built-in shapes {sorted(shapes)}'
        ) from None


def first_position(model: torch.nn.Module) -> int:
    """Return the position of a sample's first token: 0, or 1 after that of padding (RoBERTa)."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            return int(module.padding_idx) + 1
    return 0


def num_positions(model: Any) -> int | None:
    """Return the most tokens of a sample that the model has positions for; None where it names no limit."""
    limit = getattr(model.config, "max_position_embeddings", None)
    return None if limit is None else limit - first_position(model)


def _from_hub_or_folder(config: ModelConfig, vocab_size: int, pad_id: int, options: dict[str, Any]) -> torch.nn.Module:
    head = HEADS[config.task]
    with offline_unless_reachable(constants):
        shape = _as_trained(AutoConfig.from_pretrained(config.name, trust_remote_code=False, **options), config)
        if config.weights == "random":
            shape.vocab_size, shape.pad_token_id = max(shape.vocab_size, vocab_size), pad_id
            return head.from_config(shape)
        model = head.from_pretrained(
            config.name, config=shape, dtype=torch.float32, use_safetensors=True, trust_remote_code=False
        )
    if vocab_size > model.config.vocab_size:
        raise ConfigError(
            f"the tokenizer has {vocab_size} tokens, the weights of {config.name!r} only {model.config.vocab_size}; "
            "set data.tokenizer to the tokenizer that belongs to the model"
        )
    return model


def _as_trained(shape: PreTrainedConfig, config: ModelConfig) -> PreTrainedConfig:
    """Set the dropout asked for, and switch off the cache of keys and values, which only generating reads."""
    if config.task == "causal_lm":
        shape.use_cache = False
    if config.dropout is not None:
        for name in [key for key in shape.to_dict() if ("dropout" in key or "pdrop" in key) and "layer" not in key]:
            setattr(shape, name, config.dropout)
    return shape
