"""The model that is trained: a sequence classifier, or a causal language model; a digest of its weights.

Whether other inputs can replace padded rows with a padding mask is found out by computing a model's logits both ways,
in float64 and without dropout. Rounding then stays below ``TOLERANCE``, also where a model computes norms and rotations
in float32; any mixing of samples is above it, even a short convolution's of neighbours.
"""

import itertools
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
import transformers as hf
from huggingface_hub import constants
from torch.distributed.tensor import DTensor
from torch.func import functional_call
from transformers import AutoConfig, BertConfig, DistilBertConfig, GPT2Config, PreTrainedConfig

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
TOLERANCE = 1e-5  # of the spread of logits
LONGEST = 70  # tokens of the longest sample compared; beyond ModernBERT's window of 64 to each side
HEADS: dict[str, Any] = {"classification": hf.AutoModelForSequenceClassification, "causal_lm": hf.AutoModelForCausalLM}


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


def weights_digest(model: torch.nn.Module) -> str:
    """Return the digest of all parameters and buffers; of a sharded model, all ranks must call it together."""
    digest = blake2b(digest_size=16)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        digest.update(name.encode())
        digest.update(host_array(tensor.detach()).data)
    return digest.hexdigest()


def host_array(tensor: torch.Tensor) -> np.ndarray:
    """Return the numbers as a flat array on the host, dense; bfloat16, which numpy does not know, as float32."""
    whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    flat = (whole.to_dense() if whole.is_sparse else whole).detach().reshape(-1).cpu()
    return (flat.float() if flat.dtype == torch.bfloat16 else flat).numpy()


def some_rows(model: Any, max_length: int) -> list[np.ndarray]:
    """Return four samples of random tokens, two of one length; none is longer than ``max_length``."""
    random = np.random.default_rng(0)
    # a pad token inside a sample has no position of its own in some models
    words = np.setdiff1d(np.arange(model.config.vocab_size), [model.config.pad_token_id or 0])
    return [random.choice(words, min(length, max_length)) for length in (7, LONGEST, 3, 7)]


def exact_logits(model: Any, **inputs: Any) -> torch.Tensor:
    """Return the logits of ``model``, computed in float64, without dropout and without gradients."""
    training = model.training
    tensors = itertools.chain(model.named_parameters(), model.named_buffers())
    # copies, as a parameter that changes its type loses the hooks by which DDP reduces its gradient
    double = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in tensors}
    model.eval()
    try:
        with torch.no_grad():
            return functional_call(model, double, kwargs=inputs).logits
    finally:
        model.train(training)


def gap(result: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference of logits over their spread among rows; NaN where all rows are equal.

    ``result``, ``expected``: (rows, num_labels).
    """
    return float((result - expected).abs().max() / (expected - expected.mean(0)).abs().max())


def objection(compare: Callable[[], float], differs: str, fails: str) -> str | None:
    """Return why a model does not pass ``compare``, which returns a :func:`gap`; None where it passes.

    ``differs``, ``fails``: the words for a gap that is too large, and for a model that raises an error.
    """
    try:
        apart = compare()
    except Exception as error:
        return f"{fails} ({type(error).__name__}: {error})"
    # a NaN fails too: all logits are equal, and nothing was compared
    return None if apart <= TOLERANCE else f"{differs} by {apart:.1e} of their spread"
