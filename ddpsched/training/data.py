"""Ids to tensors: the collation of one micro-batch."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from ddpsched.plan import Ids


class Rows(Protocol):
    """Tokenised samples by id."""

    def row(self, id: int) -> npt.NDArray[np.int32]: ...


@dataclass(frozen=True)
class Batch:
    """Tensors of one padded micro-batch: ``input_ids`` and ``attention_mask`` (count, longest), ``labels`` (count,)."""

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)


class Collator:
    """Pads the rows of a micro-batch to its longest and moves them to the device."""

    def __init__(self, rows: Rows, labels: npt.NDArray[np.int64], pad_id: int, device: torch.device) -> None:
        self._rows, self._labels, self._pad_id, self._device = rows, labels, pad_id, device

    def __call__(self, ids: Ids) -> Batch:
        rows = [self._rows.row(int(i)) for i in ids]
        longest = max(map(len, rows))
        tokens = np.full((len(rows), longest), self._pad_id, dtype=np.int64)
        mask = np.zeros((len(rows), longest), dtype=np.int64)
        for position, row in enumerate(rows):
            tokens[position, : len(row)] = row
            mask[position, : len(row)] = 1
        return Batch(*(self._to_device(a) for a in (tokens, mask, self._labels[ids])))

    def _to_device(self, array: npt.NDArray[np.int64]) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        if self._device.type == "cuda":  # pinned memory copies without making the host wait
            return tensor.pin_memory().to(self._device, non_blocking=True)
        return tensor


def synthetic_batch(count: int, length: int, device: torch.device) -> Batch:
    """``count`` samples of ``length`` tokens with id 1, no padding, label 0: for probes and warm-up."""
    tokens = torch.ones((count, length), dtype=torch.int64, device=device)
    return Batch(tokens, torch.ones_like(tokens), torch.zeros(count, dtype=torch.int64, device=device))
