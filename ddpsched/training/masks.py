"""Attention masks, which hide padding: of tokens, of pairs of tokens, or one triangle for all samples.

=============== ============================= ======================================================
kind            shape                         right for
=============== ============================= ======================================================
``key_padding`` (count, longest)              every model: transformers derives from it what attention needs
``per_sample``  (count, 1, longest, longest)  models whose layers all attend alike
``shared``      (1, 1, longest, longest)      causal models padded on the right: tokens look to the left,
                                              and padding lies to the right of all that is real
=============== ============================= ======================================================

A mask of pairs bypasses transformers' masks and goes straight to attention. So it
must be complete, causal models included, and it cannot follow the windows of single
layers. ``enable_mask`` finds out by computation whether a model can take it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from ddpsched.errors import ConfigError
from ddpsched.training.model import exact_logits, gap, objection, some_rows


def attention_mask(kind: str, lengths: Sequence[int], longest: int, causal: bool, device: torch.device) -> torch.Tensor:
    """Return the mask of samples of ``lengths`` tokens, padded on the right to ``longest``.

    ``key_padding``: int64, 1 where a token is real. ``per_sample`` and ``shared``:
    bool, true where token i may attend to token j; i of padding attends to real
    tokens, since a softmax over nothing is NaN. Raises ValueError for an unknown
    kind and for ``shared`` without ``causal``.
    """
    positions = torch.arange(longest, device=device)
    if kind == "shared":
        if not causal:
            raise ValueError("mask 'shared' hides padding only where tokens look to the left; this model's do not")
        return (positions[:, None] >= positions)[None, None]
    # (count, longest)
    real = positions < torch.tensor(lengths, device=device)[:, None]
    if kind == "key_padding":
        return real.long()
    if kind != "per_sample":
        raise ValueError(f"mask kind {kind!r}; there are 'key_padding', 'per_sample' and 'shared'")
    if causal:
        return real[:, None, None] & (positions[:, None] >= positions)
    # written out, as a mask of pairs is what was asked for
    return real[:, None, None].expand(-1, 1, longest, longest).contiguous()


def enable_mask(model: Any, name: str, kind: str, max_length: int) -> None:
    """Let ``model``, in float32 on the CPU, take masks of this kind beside those of tokens.

    ``name``: the model's, for messages. ``max_length``: of samples, in tokens. Raises
    ConfigError, with the reason, where its logits at real tokens change; that is found
    by computing both, in float64 and without dropout.
    """
    if kind == "key_padding":
        return
    # on the model itself, so that every module around it goes through here
    model.register_forward_pre_hook(_additive_where_added, with_kwargs=True)
    window = reach(model)
    if window is not None and window < max_length:  # may be longer than what is compared
        why: str | None = f"some of its layers reach {window} tokens far, others all"
    else:
        differs = "its logits differ from those with 'key_padding'"
        why = objection(lambda: difference(model, kind, max_length), differs, fails="a batch with it fails")
    if why is not None:
        raise ConfigError(f"model {name!r} cannot take model.mask = {kind!r}: {why}; use 'key_padding'")


def reach(model: Any) -> int | None:
    """Return how many tokens far the layers with a window see; None without such layers."""
    shape = model.config.get_text_config()
    layers = getattr(shape, "layer_types", None)
    if layers is not None and not {"sliding_attention", "chunked_attention"} & set(layers):
        return None  # a window that is named, but that no layer has
    return getattr(shape, "sliding_window", None) or getattr(shape, "attention_chunk_size", None)


def difference(model: Any, kind: str, max_length: int) -> float:
    """Return the largest gap between logits with this mask and with that of tokens, at real tokens."""
    rows = some_rows(model, max_length)
    lengths = [len(row) for row in rows]
    longest = max(lengths)
    tokens = pad_sequence([torch.from_numpy(row) for row in rows], True, model.config.pad_token_id or 0)
    real = attention_mask("key_padding", lengths, longest, False, tokens.device)
    expected = exact_logits(model, input_ids=tokens, attention_mask=real)
    causal = expected.dim() == 3  # (count, longest, words), of a language model; else (count, num_labels)
    pairs = attention_mask(kind, lengths, longest, causal, tokens.device)
    result = exact_logits(model, input_ids=tokens, attention_mask=pairs)
    return gap(result[real > 0], expected[real > 0]) if causal else gap(result, expected)


def _additive_where_added(model: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Turn a bool mask into 0 and the lowest number for eager attention, which adds its mask to the scores."""
    mask = kwargs.get("attention_mask")
    if mask is not None and mask.dtype == torch.bool and model.config._attn_implementation == "eager":
        added = torch.zeros(mask.shape, dtype=model.dtype, device=mask.device)
        kwargs["attention_mask"] = added.masked_fill_(~mask, torch.finfo(model.dtype).min)
    return args, kwargs
