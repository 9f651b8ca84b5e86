"""Packed rows that would not run as planned: padded by a collate function, or for a model that mixes them up."""

import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ddpsched.data.lengths import Lengths
from ddpsched.step_plan import Ids, Microbatch
from ddpsched.training.collate import Packing


def warn_of_rows(micros: Sequence[Microbatch], batches: Sequence[Any], lengths: Lengths) -> bool:
    """Warn where a batch of a packed micro-batch is padded, or no model can keep its samples apart.

    Returns whether there was one of several samples, which alone can show it.
    """
    for micro, batch in zip(micros, batches, strict=True):
        if len(micro.ids) > 1:
            _warn_of(batch, lengths.lengths(micro.ids))
            return True
    return False


def _warn_of(batch: Any, lengths: Ids) -> None:
    parts, count = list(_parts(batch)), len(lengths)
    model = sys.modules.get("ddpsched.training.packed")
    if any(_is_padded(each, lengths) for each in parts if isinstance(each, torch.Tensor | np.ndarray)):
        warnings.warn(
            f"StepLoader: collate_fn made {count} rows of a micro-batch that policy 'packed' planned as one without "
            "padding, so ranks are not balanced; let it lay the samples end to end, as ddpsched.packed_collate does, "
            "or take policy 'balanced'",
            stacklevel=4,
        )
    elif any(isinstance(each, Packing) for each in parts) and not (model and len(model.enabled)):
        warnings.warn(
            "StepLoader: no model of this process was prepared for packed rows, and others let their samples attend "
            "to each other, without a word; call ddpsched.enable_packing(model) before training",
            stacklevel=4,
        )


def _parts(batch: Any) -> Iterator[Any]:
    if isinstance(batch, Mapping):
        yield from batch.values()
    elif isinstance(batch, list | tuple):
        yield from batch
    else:
        yield batch


def _is_padded(part: Any, lengths: Ids) -> bool:
    """Return whether it has a row, or a column, for each sample; one row of features may have as many columns."""
    if part.ndim < 2:
        return False
    (rows, columns), count, longest = part.shape[:2], len(lengths), int(lengths.max())
    return bool((rows == count and columns >= longest) or (columns == count and longest <= rows < lengths.sum()))
