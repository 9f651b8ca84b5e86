"""What keeps padding from being attended to: tokens, pairs of tokens, or one triangle for all.

=============== ============================= ======================================================
kind            shape                         right for
=============== ============================= ======================================================
``key_padding`` (count, longest)              every model: transformers makes of it what attention needs
``per_sample``  (count, 1, longest, longest)  models whose layers all attend alike
``shared``      (1, 1, longest, longest)      causal models padded on the right: tokens look to the left,
                                              and padding lies to the right of all that is real
=============== ============================= ======================================================

A mask of pairs goes past transformers' own making of masks straight to attention.
So it has to be the whole truth, also of what is causal, and windows of single layers
it does not know. ``enable_mask`` finds out by computation whether a model takes it.
"""

from collections.abc import Sequence
from typing import Any

import torch

from ddpsched.errors import ConfigError
from ddpsched.training.logit_equivalence import TOLERANCE, exactly, gap, some_rows


def attention_mask(kind: str, lengths: Sequence[int], longest: int, causal: bool, device: torch.device) -> torch.Tensor:
    """The mask of samples of ``lengths`` tokens, padded on the right to ``longest``.

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

    Raises ConfigError, with the reason, where its logits at real tokens are then
    others; that is found by computing both, in float64 and without dropout.
    """
    if kind == "key_padding":
        return
    # by the model itself, so that every wrapping of it goes through here
    model.register_forward_pre_hook(_additive_where_added, with_kwargs=True)
    window, why = reach(model), None
    if window is not None and window < max_length:  # may be longer than what is compared
        why = f"some of its layers reach {window} tokens far, others all"
    else:
        try:
            apart = difference(model, kind, max_length)
            if not apart <= TOLERANCE:  # also where it is NaN, as nothing was compared
                why = f"its logits differ from those with 'key_padding' by {apart:.1e} of their spread"
        except Exception as error:
            why = f"a batch with it fails ({type(error).__name__}: {error})"
    if why is not None:
        raise ConfigError(f"model {name!r} cannot take model.mask = {kind!r}: {why}; use 'key_padding'")


def reach(model: Any) -> int | None:
    """How many tokens far layers with a window see; None without such layers."""
    shape = model.config.get_text_config()
    layers = getattr(shape, "layer_types", None)
    if layers is not None and not {"sliding_attention", "chunked_attention"} & set(layers):
        return None  # a window that is named, but that no layer has
    return getattr(shape, "sliding_window", None) or getattr(shape, "attention_chunk_size", None)


def difference(model: Any, kind: str, max_length: int) -> float:
    """Largest gap between logits with this mask and with that of tokens, at real tokens, over their spread."""
    rows = some_rows(model, max_length)
    lengths = [len(row) for row in rows]
    longest = max(lengths)
    tokens = torch.full((len(rows), longest), model.config.pad_token_id or 0)
    for position, row in enumerate(rows):
        tokens[position, : len(row)] = torch.from_numpy(row)
    real = attention_mask("key_padding", lengths, longest, False, tokens.device)
    with exactly(model):
        expected = model(input_ids=tokens, attention_mask=real).logits
        causal = expected.dim() == 3  # (count, longest, words), of a language model; else (count, num_labels)
        pairs = attention_mask(kind, lengths, longest, causal, tokens.device)
        found = model(input_ids=tokens, attention_mask=pairs).logits
    return gap(found[real > 0], expected[real > 0]) if causal else gap(found, expected)


def _additive_where_added(model: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Eager attention adds its mask to the scores: true and false would be 1 and 0 there, and hide nothing."""
    mask = kwargs.get("attention_mask")
    if mask is not None and mask.dtype == torch.bool and model.config._attn_implementation == "eager":
        added = torch.zeros(mask.shape, dtype=model.dtype, device=mask.device)
        kwargs["attention_mask"] = added.masked_fill_(~mask, torch.finfo(model.dtype).min)
    return args, kwargs
