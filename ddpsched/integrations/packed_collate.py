"""packed_collate: samples end to end in one row without padding, as transformers' models and others take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch

from ddpsched.errors import ConfigError, DataError
from ddpsched.training.collate import CPU, Batch, pack

NUMBERS = ("label", "labels")  # names of a sample's target: one number, or one for each token


def packed_collate(
    samples: Sequence[Mapping[str, Any]], attention: Literal["packing", "flash", "mask", "cu_seqlens"] = "packing"
) -> dict[str, Any]:
    """Return samples as one packed row, the shortest first, for ``collate_fn`` of a loader with policy "packed".

        ddpsched.enable_packing(model)                             # of transformers
        loader = StepLoader(data, lengths, policy="packed", global_batch=64, collate_fn=ddpsched.packed_collate)
        ...
            labels = batch.pop("labels")
            logits = model(**batch).logits                         # (count, classes), or (1, tokens, words)

    ``samples``: mappings with "input_ids", (length,) of each, and "labels" or "label", one number of a sample or one of
    each token; what else they hold, as masks of ones, is left out. ``attention``: how a model keeps samples apart:

    ========== ========================================================= =======================================
    packing    ``packing``                                               after ``ddpsched.enable_packing(model)``
    flash      ``cu_seq_lens_q``, ``_k``, ``max_length_q``, ``_k``       transformers with flash attention
    mask       ``attention_mask`` (1, 1, tokens, tokens), true within    encoders that take a mask of pairs
    cu_seqlens ``cu_seqlens`` (count + 1,), int32, and ``max_seqlen``    your own model
    ========== ========================================================= =======================================

    Beside it ``input_ids`` and ``position_ids``, (1, tokens), int64, the positions from 0 in each sample; ``labels``,
    (count,) in the order of the row, or (1, tokens), where the first of each sample is -100: nothing predicts it.
    A classifier behind "packing" returns a row of logits a sample; with the others read each sample's tokens yourself.

    Raises DataError for samples without these keys, or whose labels are not as long as their ids, ConfigError for
    another ``attention``.

    >>> batch = packed_collate([{"input_ids": [7, 8, 9], "label": 1}, {"input_ids": [5], "label": 0}], "cu_seqlens")
    >>> batch["input_ids"].tolist(), batch["position_ids"].tolist(), batch["labels"].tolist()
    ([[5, 7, 8, 9]], [[0, 0, 1, 2]], [0, 1])
    >>> batch["cu_seqlens"].tolist(), batch["max_seqlen"]
    ([0, 1, 4], 3)
    """
    if attention not in FORMS:
        raise ConfigError(f"packed_collate: attention = {attention!r} is none of {', '.join(map(repr, FORMS))}")
    rows = [np.asarray(_of(sample, number, ("input_ids",))) for number, sample in enumerate(samples)]
    targets = [np.asarray(_of(sample, number, NUMBERS)) for number, sample in enumerate(samples)]
    by_token = bool(targets) and targets[0].ndim > 0
    for number, (row, target) in enumerate(zip(rows, targets, strict=True)):
        if target.shape != (row.shape if by_token else ()) or row.ndim != 1:
            raise DataError(
                f"packed_collate: sample {number} has input_ids of shape {row.shape} and labels of {target.shape}; "
                "give flat ids, and one label of each sample, or one of each token"
            )
    batch = pack(rows, targets if by_token else np.array(targets), CPU)
    return {
        "input_ids": batch.input_ids, "position_ids": batch.position_ids, "labels": batch.labels,
        **FORMS[attention](batch),
    }  # fmt: skip


def _of(sample: Any, number: int, keys: Sequence[str]) -> Any:
    found = next((key for key in keys if isinstance(sample, Mapping) and key in sample), None)
    if found is None:
        held = ", ".join(map(repr, sample)) if isinstance(sample, Mapping) else type(sample).__name__
        raise DataError(f"packed_collate: sample {number} has no {' or '.join(map(repr, keys))}; it has {held}")
    return sample[found]


def _packing(batch: Batch) -> dict[str, Any]:
    return {"packing": batch.packing}


def _flash(batch: Batch) -> dict[str, Any]:
    assert batch.packing is not None
    offsets, longest = batch.packing.offsets, batch.packing.lengths[-1]
    return {"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets, "max_length_q": longest, "max_length_k": longest}


def _mask(batch: Batch) -> dict[str, Any]:
    assert batch.packing is not None
    lengths = torch.tensor(batch.packing.lengths)
    of = torch.repeat_interleave(torch.arange(len(lengths)), lengths)  # (tokens,): each one's sample
    return {"attention_mask": (of[:, None] == of)[None, None]}


def _cu_seqlens(batch: Batch) -> dict[str, Any]:
    assert batch.packing is not None
    return {"cu_seqlens": batch.packing.offsets, "max_seqlen": batch.packing.lengths[-1]}


FORMS = {"packing": _packing, "flash": _flash, "mask": _mask, "cu_seqlens": _cu_seqlens}
