"""Ids to tensors: the collation of one micro-batch, padded or packed."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from ddpsched.plan import Ids

Int = npt.NDArray[np.int64]


class Rows(Protocol):
    """Tokenised samples by id."""

    def row(self, id: int) -> npt.NDArray[np.int32]: ...


@dataclass(frozen=True)
class Packing:
    """Where the samples of a packed row lie: end to end, in rising order of length.

    ``lengths``: tokens of each sample. ``offsets``: (count + 1,), int32, on the
    device: where each sample begins, then where the row ends.
    """

    lengths: tuple[int, ...]
    offsets: torch.Tensor

    @cached_property
    def groups(self) -> tuple[tuple[int, int], ...]:
        """(count, length) of each stretch of samples of one length."""
        return tuple((len(list(same)), length) for length, same in itertools.groupby(self.lengths))


@dataclass(frozen=True)
class Batch:
    """Tensors of one micro-batch of ``count`` samples.

    Padded: ``input_ids`` and ``attention_mask`` (count, longest). Packed:
    ``input_ids`` and ``position_ids`` (1, tokens), the positions counted from 0 in
    each sample, and ``packing``. ``labels``: (count,), in the order of the samples.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor | None
    labels: torch.Tensor
    position_ids: torch.Tensor | None = None
    packing: Packing | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def inputs(self) -> dict[str, Any]:
        """What the model's forward is called with."""
        if self.packing is None:
            return {"input_ids": self.input_ids, "attention_mask": self.attention_mask}
        return {"input_ids": self.input_ids, "position_ids": self.position_ids, "packing": self.packing}


def pad(rows: Sequence[npt.NDArray[Any]], labels: Int, pad_id: int, device: torch.device) -> Batch:
    """One row a sample, each filled up to the longest with ``pad_id``."""
    longest = max(map(len, rows))
    tokens = np.full((len(rows), longest), pad_id, dtype=np.int64)
    mask = np.zeros((len(rows), longest), dtype=np.int64)
    for position, row in enumerate(rows):
        tokens[position, : len(row)] = row
        mask[position, : len(row)] = 1
    return Batch(_to_device(tokens, device), _to_device(mask, device), _to_device(labels, device))


def pack(rows: Sequence[npt.NDArray[Any]], labels: Int, device: torch.device) -> Batch:
    """One row for all samples, in rising order of length, so that equal lengths lie side by side."""
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    lengths = tuple(len(rows[i]) for i in order)
    tokens = np.concatenate([rows[i] for i in order]).astype(np.int64)
    positions = np.concatenate([np.arange(length) for length in lengths])
    packing = Packing(lengths, _to_device(np.cumsum((0, *lengths), dtype=np.int32), device))
    return Batch(
        input_ids=_to_device(tokens[None], device),
        attention_mask=None,
        labels=_to_device(labels[order], device),
        position_ids=_to_device(positions[None], device),
        packing=packing,
    )


class Collator:
    """The rows of a micro-batch, padded to its longest or packed into one, on the device."""

    def __init__(self, rows: Rows, labels: Int, pad_id: int, device: torch.device) -> None:
        self._rows, self._labels, self._pad_id, self._device = rows, labels, pad_id, device

    def __call__(self, ids: Ids, packed: bool = False) -> Batch:
        rows, labels = [self._rows.row(int(i)) for i in ids], self._labels[ids]
        return pack(rows, labels, self._device) if packed else pad(rows, labels, self._pad_id, self._device)

    def some(self, ids: Ids, count: int) -> Ids:
        """``count`` of these ids, spread evenly over their lengths, the longest among them."""
        order = np.argsort([-len(self._rows.row(int(i))) for i in ids], kind="stable")
        return ids[order[np.arange(count) * len(ids) // count]]


def _to_device(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    if device.type == "cuda":  # pinned memory copies without making the host wait
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor


@contextmanager
def without_trace(module: torch.nn.Module) -> Iterator[None]:
    """Passes of synthetic samples in it neither draw dropout nor move running statistics."""
    training = {each: each.training for each in module.modules()}
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    module.eval()
    try:
        yield
    finally:
        for each, mode in training.items():
            each.training = mode
        for name, buffer in buffers.items():
            if not torch.equal(module.get_buffer(name), buffer):
                module.get_buffer(name).copy_(buffer)


def synthetic_batch(count: int, length: int, device: torch.device) -> Batch:
    """``count`` samples of ``length`` tokens with id 1, no padding, label 0: for probes and warm-up."""
    tokens = torch.ones((count, length), dtype=torch.int64, device=device)
    return Batch(tokens, torch.ones_like(tokens), torch.zeros(count, dtype=torch.int64, device=device))
