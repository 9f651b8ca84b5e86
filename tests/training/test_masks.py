"""A pair mask gives the outputs and gradients of the token mask, or the model is refused.

``pytest -rP tests/training/test_masks.py`` prints the differences.
"""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertConfig,
    DistilBertConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    ModernBertConfig,
    OPTConfig,
    PreTrainedConfig,
)

from ddpsched.errors import ConfigError
from ddpsched.training import masks
from ddpsched.training.masks import attention_mask, enable_mask

CPU = torch.device("cpu")
LENGTHS = (9, 4, 1, 23)
SMALL = {
    "vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 90, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
FAMILIES: dict[str, tuple[PreTrainedConfig, bool]] = {  # the flag marks causal language models
    "distilbert": (DistilBertConfig(vocab_size=100, dim=32, n_layers=2, n_heads=4, hidden_dim=64), False),
    "bert": (BertConfig(**SMALL), False),
    "gpt2": (GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2), True),
    "llama": (LlamaConfig(**SMALL, num_key_value_heads=2), True),
}
KINDS = [
    (name, kind) for name in FAMILIES for kind in ("per_sample", "shared") if FAMILIES[name][1] or kind != "shared"
]
WINDOW = {**SMALL, "num_key_value_heads": 2, "sliding_window": 8}


def made_from(shape: PreTrainedConfig, attention: str = "sdpa") -> Any:
    torch.manual_seed(0)
    causal = isinstance(shape, GPT2Config | LlamaConfig | MistralConfig | OPTConfig)
    factory: Any = AutoModelForCausalLM if causal else AutoModelForSequenceClassification
    return factory.from_config(shape, attn_implementation=attention)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Return random tokens (count, longest) and equal labels, -100 where padded."""
    random = np.random.default_rng(0)
    tokens, labels = np.zeros((len(LENGTHS), max(LENGTHS)), dtype=np.int64), np.full((len(LENGTHS), max(LENGTHS)), -100)
    for row, length in enumerate(LENGTHS):
        tokens[row, :length] = labels[row, :length] = random.integers(3, 100, length)
    return torch.from_numpy(tokens), torch.from_numpy(labels)


def outcome(model: Any, mask: torch.Tensor, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits at real tokens (per sample in a classifier) and the gradient."""
    tokens, labels = batch()
    model.zero_grad()
    logits = model(input_ids=tokens, attention_mask=mask).logits
    if causal:
        loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
        logits = logits[labels >= 0]
    else:
        loss = functional.cross_entropy(logits, torch.arange(len(LENGTHS)) % 2, reduction="sum")
    loss.backward()
    gradient = [(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in model.parameters()]
    return logits.detach(), torch.cat(gradient)


def mask_of(kind: str, causal: bool) -> torch.Tensor:
    return attention_mask(kind, LENGTHS, max(LENGTHS), causal, CPU)


@pytest.mark.parametrize(("precision", "within"), [("float32", 1e-6), ("float64", 1e-12)])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_every_kind_says_the_same(name: str, kind: str, attention: str, precision: str, within: float) -> None:
    shape, causal = FAMILIES[name]
    model = made_from(shape, attention)
    enable_mask(model, name, kind, 64)
    assert model.config._attn_implementation == attention
    model.to(getattr(torch, precision)).eval()
    expected, its_gradient = outcome(model, mask_of("key_padding", causal), causal)
    found, gradient = outcome(model, mask_of(kind, causal), causal)
    apart = float((found - expected).abs().max())
    error = float((gradient - its_gradient).norm() / its_gradient.norm())
    print(f"{name}, {attention}, {kind}, {precision}: logits {apart:.1e}, gradient {error:.1e}")
    assert apart <= within
    assert error <= within


@pytest.mark.parametrize("name", FAMILIES)
def test_the_comparison_can_fail(name: str) -> None:
    """Visible padding or later tokens are noticed, and so are boolean masks in eager attention."""
    shape, causal = FAMILIES[name]
    model = made_from(shape).double().eval()
    expected, its_gradient = outcome(model, mask_of("key_padding", causal), causal)
    found, gradient = outcome(model, torch.ones_like(mask_of("per_sample", causal)), causal)
    assert (found - expected).abs().max() > 1e-5
    assert (gradient - its_gradient).norm() > 1e-3 * its_gradient.norm()
    model.set_attn_implementation("eager")
    found, _ = outcome(model, mask_of("per_sample", causal), causal)
    assert (found - expected).abs().max() > 1e-5, "transformers now takes masks of bools in eager attention"


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 3), st.booleans())
def test_what_masks_say(lengths: list[int], padding: int, causal: bool) -> None:
    longest = max(lengths) + padding
    tokens = attention_mask("key_padding", lengths, longest, causal, CPU)
    pairs = attention_mask("per_sample", lengths, longest, causal, CPU)
    assert (tokens.shape, tokens.dtype) == ((len(lengths), longest), torch.int64)
    assert (pairs.shape, pairs.dtype) == ((len(lengths), 1, longest, longest), torch.bool)
    for row, length in enumerate(lengths):
        assert tokens[row].tolist() == [1] * length + [0] * (longest - length)
        for i in range(longest):
            seen = [j for j in range(longest) if j < length and (j <= i or not causal)]
            assert pairs[row, 0, i].nonzero().flatten().tolist() == seen
            assert seen, "a softmax over nothing"
    if causal:
        triangle = attention_mask("shared", lengths, longest, causal, CPU)
        assert triangle.tolist() == torch.ones(longest, longest).tril().bool()[None, None].tolist()


def test_masks_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="tokens look to the left"):
        attention_mask("shared", [3], 3, False, CPU)
    with pytest.raises(ValueError, match="mask kind 'none'; there are"):
        attention_mask("none", [3], 3, True, CPU)


REFUSED = {
    "windows of single layers": (MistralConfig(**WINDOW), "per_sample", r"some of its layers reach 8 tokens far"),
    "of encoders too": (ModernBertConfig(**SMALL, local_attention=8), "per_sample", r"reach 4 tokens far"),
    "positions from the mask": (
        OPTConfig(**SMALL, ffn_dim=64, word_embed_proj_dim=32), "shared", r"a batch with it fails \(RuntimeError",
    ),
    "both directions": (BertConfig(**SMALL), "shared", r"a batch with it fails \(ValueError: mask 'shared' hides"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_cannot_take_it_are_refused(name: str) -> None:
    shape, kind, why = REFUSED[name]
    with pytest.raises(ConfigError, match=rf"cannot take model.mask = '{kind}': .*{why}.*; use 'key_padding'"):
        enable_mask(made_from(shape), name, kind, 64)
    enable_mask(made_from(shape), name, "key_padding", 64)


def test_windows_are_also_found_by_computation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "reach", lambda model: None)
    for shape in (MistralConfig(**WINDOW), ModernBertConfig(**SMALL, local_attention=8)):
        with pytest.raises(ConfigError, match=r"its logits differ from those with 'key_padding' by \d"):
            enable_mask(made_from(shape), "windows", "per_sample", 64)


def test_windows_longer_than_any_sample_do_not_matter() -> None:
    enable_mask(made_from(MistralConfig(**{**WINDOW, "sliding_window": 64})), "wide", "per_sample", 64)


def test_a_masks_float_has_the_models_precision_under_autocast() -> None:
    model = made_from(FAMILIES["gpt2"][0], "eager")
    enable_mask(model, "gpt2", "shared", 64)
    model.eval()
    expected, _ = outcome(model, mask_of("key_padding", True), True)
    with torch.autocast("cpu", torch.bfloat16):
        found, gradient = outcome(model, mask_of("shared", True), True)
    assert gradient.isfinite().all()
    assert (found - expected).abs().max() <= 0.02
