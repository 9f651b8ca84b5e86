"""Packed rows: changes to a transformers model that keep the samples of one row apart.

A packed row holds its samples end to end, (1, tokens), without padding. Three
parts of a model would mix them up, and each is corrected:

=================== =====================================================================
positions           are counted from 0 in each sample, from the model's first position
attention           over the whole row becomes each sample's attention to itself
the head            of a classifier reads the first token of a row, and is given each
                    sample's as a row; a language model's reads every token, as before
=================== =====================================================================

Everything else in a transformer treats each token for itself. A batch brings its
``packing`` as a keyword of forward, which transformers' models hand down to
their attention; padded batches bring none and run as under plain SDPA.
"""

import inspect
from functools import partial
from typing import Any, Literal
from weakref import WeakSet

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ddpsched.errors import ConfigError
from ddpsched.training.collate import Packing, pack, pad
from ddpsched.training.model import exact_logits, first_position, gap, num_positions, objection, some_rows
from ddpsched.training.part_rows import PartRow

try:
    from torch.nn.attention.varlen import varlen_attn  # torch 2.10
except ImportError:
    varlen_attn = None  # type: ignore[assignment]
VARLEN = frozenset(() if varlen_attn is None else inspect.signature(varlen_attn).parameters)  # more with each torch

Row = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # query, key and value of a packed row

NAMES = {"auto": "ddpsched_packed", "sdpa": "ddpsched_packed_sdpa"}  # in transformers' registers of attention and masks
enabled: WeakSet[Any] = WeakSet()  # models that run packed batches


Attention = Literal["auto", "sdpa"]


def enable_packing(
    model: Any, name: str | None = None, max_length: int | None = None, attention: Attention = "auto"
) -> None:
    """Let ``model`` run packed batches beside padded ones; it classifies, or predicts tokens.

    ``model``: of transformers, or torch's DDP of one; a second call changes nothing. ``name``: the model's, for
    messages. ``max_length``: of samples, in tokens; by default the positions that the model has. ``attention``: torch's
    kernel for rows of varying lengths wherever it can compute it ("auto"), or SDPA for all samples of one length at a
    time. Raises ConfigError, with the reason, where its packed logits are not the padded ones it had before; that is
    found by computing both, in float64 and without dropout.
    """
    if isinstance(model, DistributedDataParallel):
        model = model.module
    if not isinstance(model, PreTrainedModel):
        raise ConfigError(
            f"enable_packing: {type(model).__name__} is no model of transformers; give the model itself, before it is "
            'compiled or wrapped, or take rows for a model of your own: packed_collate(samples, "cu_seqlens")'
        )
    if model in enabled:
        return
    name = name or type(model).__name__
    max_length = max_length or num_positions(model) or 512
    differs, fails = "its packed logits differ from its padded ones", "a packed batch fails in it"
    why = _missing(model, max_length) or objection(
        lambda: _prepare_and_compare(model, max_length, attention), differs, fails
    )
    if why is not None:
        raise ConfigError(
            f"model {name!r} cannot run packed: {why}; use policy.kind = 'balanced' without data.within_documents"
        )
    enabled.add(model)


def can_pack(model: Any, max_length: int, attention: Attention = "auto") -> bool:
    """Let ``model`` run packed batches beside padded ones, and return True; False where it cannot."""
    try:
        enable_packing(model, max_length=max_length, attention=attention)
    except ConfigError:  # whatever the reason is: packed rows are only one of several candidates here
        return False
    return True


def _prepare_and_compare(model: Any, max_length: int, attention: Attention) -> float:
    """Return the largest gap between the padded logits of a few samples, computed first, and the packed ones."""
    rows, pad_id, device = some_rows(model, max_length), model.config.pad_token_id or 0, model.device
    order = np.arange(len(rows))  # labels that number the samples, as packing changes their order
    padded, row = pad(rows, order, pad_id, device), pack(rows, order, device)
    assert row.packing is not None
    expected = exact_logits(model, **padded.inputs)
    classifies = expected.dim() == 2  # (count, num_labels); a language model's are (count, longest, words)
    _prepare(model, classifies, attention)
    result = exact_logits(model, **row.inputs)
    if classifies:
        return gap(result, expected[row.labels])
    # (1, tokens, words), in the order of the row
    real = zip(row.labels, row.packing.lengths, strict=True)
    return gap(result[0], torch.cat([expected[sample, :length] for sample, length in real]))


def _missing(model: Any, max_length: int) -> str | None:
    """Return what the model lacks, as far as it shows without computing; None where it lacks nothing."""
    if not model.is_backend_compatible():
        return "its attention cannot be exchanged (transformers' AttentionInterface)"
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return "its forward takes no position_ids"
    chunk = getattr(model.config.get_text_config(), "attention_chunk_size", None)
    if chunk is not None and chunk < max_length:  # chunks may be longer than what is compared
        return f"it attends in chunks of {chunk} tokens"
    return None


def _prepare(model: Any, classifies: bool, attention: Attention) -> None:
    """Exchange the attention, shift the positions, and hand a classifier's head the first token of each sample."""
    AttentionInterface.register(NAMES[attention], partial(_attend, kernel=attention == "auto"))
    AttentionMaskInterface.register(NAMES[attention], _mask)
    model.set_attn_implementation(NAMES[attention])
    base = model.base_model
    shift = first_position(model)
    if shift:

        def shift_positions(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
            if kwargs.get("packing") is not None:
                kwargs["position_ids"] = kwargs["position_ids"] + shift
            return args, kwargs

        base.register_forward_pre_hook(shift_positions, with_kwargs=True)
    if classifies:
        # a pooler inside the base model, as BERT's, reads the encoder's output
        stacks = [getattr(base, name, None) for name in ("encoder", "transformer")]
        stack = next((stack for stack in stacks if stack is not None), base)
        stack.register_forward_hook(_first_tokens, with_kwargs=True)


def _first_tokens(module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
    """Reduce the encoder's output to each sample's first token: (1, tokens, dim) -> (count, 1, dim)."""
    packing: Packing | PartRow | None = kwargs.get("packing")
    if packing is not None:
        states = output.last_hidden_state
        output.last_hidden_state = states[0].index_select(0, packing.offsets[:-1]).unsqueeze(1)
    return output


def _mask(attention_mask: torch.Tensor | None = None, **options: Any) -> torch.Tensor | None:
    """Return SDPA's mask of a padded batch; a packed one has none and must not get one of tokens squared."""
    return None if attention_mask is None else sdpa_mask(attention_mask=attention_mask, **options)


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    packing: Packing | PartRow | None = None,
    sliding_window: int | None = None,
    kernel: bool = True,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Compute SDPA, in a packed row of each sample to itself; in a causal model of each token to those before it.

    ``query``, ``key``, ``value``: (rows, heads, tokens, head_dim), rows = 1 where
    packed; the latter two may have fewer heads. ``sliding_window``: tokens reach only
    those fewer than that many away. ``kernel``: take torch's for varying lengths where it can. Returns
    (rows, tokens, heads, head_dim) and no weights.
    """
    if packing is None:
        if attention_mask is None:
            attention_mask = _band(query.shape[2], sliding_window, _is_causal(module, options), query.device)
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    if isinstance(packing, PartRow):
        causal = _is_causal(module, options)
        return packing.attend(module, query, key, value, causal, sliding_window, options), None
    # (1, heads, tokens, head_dim) -> (tokens, heads, head_dim), three views
    row = (query.squeeze(0).transpose(0, 1), key.squeeze(0).transpose(0, 1), value.squeeze(0).transpose(0, 1))
    keywords = _for_kernel(module, query, sliding_window, options) if kernel else None
    if keywords is not None:
        ends, longest = packing.offsets, packing.lengths[-1]
        attended: Any = varlen_attn(*row, ends, ends, longest, longest, **keywords)
        return attended.unsqueeze(0), None
    return _each_to_itself(module, row, packing, sliding_window, options).unsqueeze(0), None


def _each_to_itself(
    module: Any, row: Row, packing: Packing, sliding_window: int | None, options: dict[str, Any]
) -> torch.Tensor:
    """Compute SDPA once for all samples of one length; no padding, nothing computed between samples.

    ``row``: query, key and value, each (tokens, heads, head_dim). Returns the query's shape.
    """
    # one split a tensor: its backward is one concatenation, where slices would each fill a whole row with zeros
    sizes = [count * length for count, length in packing.groups]
    pieces = zip(*(tensor.split(sizes) for tensor in row), strict=True)
    attended = []
    for (count, length), piece in zip(packing.groups, pieces, strict=True):
        # (count * length, heads, head_dim) -> (count, heads, length, head_dim)
        samples = [tensor.unflatten(0, (count, length)).transpose(1, 2) for tensor in piece]
        mask = _band(length, sliding_window, _is_causal(module, options), row[0].device)
        attended.append(sdpa_attention_forward(module, *samples, mask, **options)[0].flatten(0, 1))
    return torch.cat(attended)


def _band(length: int, sliding_window: int | None, causal: bool, device: torch.device) -> torch.Tensor | None:
    """Return (length, length), true where a token may attend to another; None where no window limits that.

    Without a mask SDPA handles causality itself, with one it leaves that to the mask.
    """
    if sliding_window is None or length <= sliding_window:
        return None
    positions = torch.arange(length, device=device)
    back = positions[:, None] - positions
    near = back.abs() < sliding_window
    return near & (back >= 0) if causal else near


def _is_causal(module: Any, options: dict[str, Any]) -> bool:
    """Return whether attention is causal, as transformers' SDPA decides: by the option, or else the module."""
    option = options.get("is_causal")
    return bool(getattr(module, "is_causal", True) if option is None else option)


def _for_kernel(
    module: Any, query: torch.Tensor, sliding_window: int | None, options: dict[str, Any]
) -> dict[str, Any] | None:
    """Return the keywords for torch's variable-length kernel; None where it cannot compute this attention.

    It has one scale and no dropout; windows and grouped heads came with later versions.
    """
    if (
        varlen_attn is None
        or query.device.type != "cuda"
        or torch.cuda.get_device_capability(query.device) < (8, 0)
        or query.dtype not in (torch.float16, torch.bfloat16)
        or options.get("dropout", 0.0) != 0.0
        or options.get("scaling") not in (None, query.shape[-1] ** -0.5)
    ):
        return None
    keywords = _keywords(_is_causal(module, options), sliding_window, getattr(module, "num_key_value_groups", 1))
    return keywords if VARLEN.issuperset(keywords) else None


def _keywords(causal: bool, sliding_window: int | None, groups: int) -> dict[str, Any]:
    """Return keywords of the kernel; those that change nothing are left out, as older versions do not take them."""
    keywords: dict[str, Any] = {}
    if causal and sliding_window is None and "window_size" not in VARLEN:
        keywords["is_causal"] = True  # torch 2.10
    elif causal or sliding_window is not None:
        reach = -1 if sliding_window is None else sliding_window - 1
        keywords["window_size"] = (reach, 0 if causal else reach)
    if groups > 1:
        keywords["enable_gqa"] = True
    return keywords
