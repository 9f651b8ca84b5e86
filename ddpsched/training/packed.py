"""Packed rows: what a transformers classifier needs so that samples in one row do not see each other.

A packed row holds its samples end to end, (1, tokens), without padding. Three
things would mix them up, and each is set right where it happens:

=================== =====================================================================
positions           are counted from 0 in each sample, from the model's own first position
attention           over the whole row becomes each sample's attention to itself
the head            reads the first token of a row, and is given each sample's as a row
=================== =====================================================================

Everything else in an encoder treats each token for itself. A batch brings its
``packing`` as a keyword of forward, which transformers' encoders hand down to
their attention; padded batches bring none and run as under plain SDPA.
"""

import inspect
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ddpsched.errors import ConfigError
from ddpsched.training.data import Packing, pack, pad
from ddpsched.training.model import first_position

try:
    from torch.nn.attention.varlen import varlen_attn  # torch 2.10
except ImportError:
    varlen_attn = None  # type: ignore[assignment]

Row = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # query, key and value of a packed row

NAME = "ddpsched_packed"  # in transformers' registers of attention and mask functions
CPU = torch.device("cpu")
TOLERANCE = 1e-4  # of the spread of logits over samples, in float64: rounding stays below, any mixing of samples above
LONGEST = 70  # tokens of the longest sample compared; beyond ModernBERT's window of 64 to each side


def enable_packing(model: Any, name: str, max_length: int) -> None:
    """Let ``model``, a float32 classifier on the CPU, run packed batches beside padded ones.

    Raises ConfigError, with the reason, where its packed logits are not its padded
    ones; that is found by computing both, in float64 and without dropout.
    """
    why = _cannot(model)
    if why is None:
        _prepare(model)
        try:
            apart = difference(model, max_length)
            if not apart <= TOLERANCE:  # also where it is NaN, as all logits are equal and nothing was compared
                why = f"its packed logits differ from its padded ones by {apart:.1e} of their spread over samples"
        except Exception as error:
            why = f"a packed batch fails in it ({type(error).__name__}: {error})"
    if why is not None:
        raise ConfigError(f"model {name!r} cannot run packed: {why}; use policy.kind = 'balanced'")


def difference(model: Any, max_length: int) -> float:
    """Largest gap between packed and padded logits of a few samples, over the spread of logits among samples."""
    random = np.random.default_rng(0)
    labels = np.arange(4)  # which sample it is, as packing changes the order
    lengths = [min(length, max_length) for length in (7, LONGEST, 3, 7)]
    pad_id = model.config.pad_token_id or 0
    # a pad token inside a sample has no position of its own in some models
    words = np.setdiff1d(np.arange(model.config.vocab_size), [pad_id])
    rows = [random.choice(words, length) for length in lengths]
    padded, packed = pad(rows, labels, pad_id, CPU), pack(rows, labels, CPU)
    training = model.training
    model.double().eval()
    try:
        with torch.no_grad():
            expected = model(**padded.inputs).logits  # (count, num_labels)
            found = model(**packed.inputs).logits
    finally:
        model.float().train(training)  # exact: every number was a float32 before
    gap = (found - expected[packed.labels]).abs().max()
    return float(gap / (expected - expected.mean(0)).abs().max())


def _cannot(model: Any) -> str | None:
    """What the model lacks before anything is computed."""
    if not model.is_backend_compatible():
        return "its attention cannot be exchanged (transformers' AttentionInterface)"
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return "its forward takes no position_ids"
    return None


def _prepare(model: Any) -> None:
    """Exchange the attention, shift the positions, and hand the head the first token of each sample."""
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, _mask)
    model.set_attn_implementation(NAME)
    base = model.base_model
    shift = first_position(model)
    if shift:

        def shift_positions(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
            if kwargs.get("packing") is not None:
                kwargs["position_ids"] = kwargs["position_ids"] + shift
            return args, kwargs

        base.register_forward_pre_hook(shift_positions, with_kwargs=True)
    # a pooler inside the base model, as BERT's, reads the encoder's output
    stack = next((s for s in (getattr(base, n, None) for n in ("encoder", "transformer")) if s is not None), base)
    stack.register_forward_hook(_first_tokens, with_kwargs=True)


def _first_tokens(module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
    """The encoder's output: (1, tokens, dim) -> (count, 1, dim), each sample's first token."""
    packing: Packing | None = kwargs.get("packing")
    if packing is not None:
        states = output.last_hidden_state
        output.last_hidden_state = states[0].index_select(0, packing.offsets[:-1]).unsqueeze(1)
    return output


def _mask(attention_mask: torch.Tensor | None = None, **options: Any) -> torch.Tensor | None:
    """SDPA's mask of a padded batch; a packed one, which has no attention_mask, must not get one of tokens squared."""
    return None if attention_mask is None else sdpa_mask(attention_mask=attention_mask, **options)


def attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    packing: Packing | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """SDPA, in a packed row from each sample to itself.

    ``query``, ``key``, ``value``: (rows, heads, tokens, head_dim), rows = 1 where
    packed. ``sliding_window``: tokens reach only those fewer than that many away.
    Returns (rows, tokens, heads, head_dim) and no weights.
    """
    if packing is None:
        if attention_mask is None:
            attention_mask = _band(query.shape[2], sliding_window, query.device)
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    # (1, heads, tokens, head_dim) -> (tokens, heads, head_dim), three views
    row = (query.squeeze(0).transpose(0, 1), key.squeeze(0).transpose(0, 1), value.squeeze(0).transpose(0, 1))
    if _has_kernel(module, query, sliding_window, **options):
        ends, longest = packing.offsets, packing.lengths[-1]
        found: Any = varlen_attn(*row, ends, ends, longest, longest)
        return found.unsqueeze(0), None
    return _each_to_itself(module, row, packing, sliding_window, options).unsqueeze(0), None


def _each_to_itself(
    module: Any, row: Row, packing: Packing, sliding_window: int | None, options: dict[str, Any]
) -> torch.Tensor:
    """SDPA once for all samples of one length; no padding, nothing computed between samples.

    ``row``: query, key and value, each (tokens, heads, head_dim). Returns the same shape.
    """
    # one split a tensor: its backward is one concatenation, where slices would each fill a whole row with zeros
    sizes = [count * length for count, length in packing.groups]
    pieces = zip(*(tensor.split(sizes) for tensor in row), strict=True)
    found = []
    for (count, length), piece in zip(packing.groups, pieces, strict=True):
        # (count * length, heads, head_dim) -> (count, heads, length, head_dim)
        samples = [tensor.unflatten(0, (count, length)).transpose(1, 2) for tensor in piece]
        mask = _band(length, sliding_window, row[0].device)
        found.append(sdpa_attention_forward(module, *samples, mask, **options)[0].flatten(0, 1))
    return torch.cat(found)


def _band(length: int, sliding_window: int | None, device: torch.device) -> torch.Tensor | None:
    """(length, length), true where two tokens are within the window; None where all are."""
    if sliding_window is None or length <= sliding_window:
        return None
    positions = torch.arange(length, device=device)
    return (positions[:, None] - positions[None]).abs() < sliding_window


def _has_kernel(
    module: Any,
    query: torch.Tensor,
    sliding_window: int | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> bool:
    """Whether torch's variable-length kernel computes this attention: it has one scale and no dropout."""
    return (
        varlen_attn is not None
        and query.device.type == "cuda"
        and torch.cuda.get_device_capability(query.device) >= (8, 0)
        and query.dtype in (torch.float16, torch.bfloat16)
        and dropout == 0.0
        and sliding_window is None
        and scaling in (None, query.shape[-1] ** -0.5)
        and not getattr(module, "is_causal", True)
        and getattr(module, "num_key_value_groups", 1) == 1
    )
