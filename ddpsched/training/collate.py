"""The collation of a micro-batch: sample ids to tensors, padded or packed.

A classifier has one label a sample. A language model has one a token, in place (the
loss shifts them): -100 at prompts and padding, and in a packed row at the first token
of each sample, which would otherwise be predicted from the sample before it.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from ddpsched.costs.cost_model import padded_tokens
from ddpsched.data.token_table import SliceTable
from ddpsched.errors import DataError
from ddpsched.parts import Part
from ddpsched.step_plan import Ids
from ddpsched.training.masks import attention_mask
from ddpsched.training.part_rows import Gather, PartRow, positions_of

Int = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Weigh = Callable[[Ids, Int], Floats]  # samples, and the label tokens of each, to the weight of these
Arrays = Sequence[npt.NDArray[Any]]
Labels = Int | Arrays  # one a sample, or for each sample one a token
NOT_LEARNT = -100
CPU = torch.device("cpu")


class Rows(Protocol):
    """Tokenised samples by id."""

    def row(self, id: int) -> npt.NDArray[np.int32]: ...

    def labels(self, id: int) -> npt.NDArray[np.int32]: ...  # called for language models only


@dataclass(frozen=True)
class Packing:
    """The places of samples in a packed row: end to end, in rising order of length.

    ``lengths``: tokens of each sample. ``offsets``: (count + 1,), int32, on the
    device: where each sample begins, then where the row ends.
    """

    lengths: tuple[int, ...]
    offsets: torch.Tensor

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Packing":
        """Return the same on another device, as loaders that move batches ask for."""
        return Packing(self.lengths, self.offsets.to(device, non_blocking=non_blocking))

    @cached_property
    def groups(self) -> tuple[tuple[int, int], ...]:
        """(count, length) of each stretch of samples of one length."""
        return tuple((len(list(same)), length) for length, same in itertools.groupby(self.lengths))


@dataclass(frozen=True)
class Batch:
    """Tensors of one micro-batch of ``count`` samples.

    Padded: ``input_ids`` (count, longest) and ``attention_mask``, by default as large. Packed:
    ``input_ids`` and ``position_ids`` (1, tokens), the positions counted from 0 in
    each sample, and ``packing``. ``labels``: (count,), in the order of the samples, or
    as large as ``input_ids``. ``weights``: as large, float64, the factor of each
    token's loss; None for 1. A row of parts has labels and weights (1, tokens + 1): at
    i + 1 those of the token that follows token i in the sample.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor | None
    labels: torch.Tensor
    position_ids: torch.Tensor | None = None
    packing: Packing | PartRow | None = None
    weights: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.input_ids) if self.packing is None else len(self.packing.lengths)

    @property
    def inputs(self) -> dict[str, Any]:
        """Keyword arguments of the model's forward."""
        if self.packing is None:
            return {"input_ids": self.input_ids, "attention_mask": self.attention_mask}
        return {"input_ids": self.input_ids, "position_ids": self.position_ids, "packing": self.packing}


def filled_up(rows: Arrays, labels: Labels, weights: Floats | None, count: int) -> tuple[Arrays, Labels, Floats | None]:
    """Return ``count`` rows: these, and behind them rows of one token that no loss is computed of.

    A row without any token would have nothing to attend to, and its softmax no value.
    """
    more = count - len(rows)
    if more <= 0:
        return rows, labels, weights
    rest = [np.ones(1, dtype=np.int32)] * more
    if isinstance(labels, np.ndarray):
        labels = np.concatenate([labels, np.full(more, NOT_LEARNT)])
    else:
        labels = [*labels, *[np.full(1, NOT_LEARNT)] * more]
    return [*rows, *rest], labels, None if weights is None else np.concatenate([weights, np.zeros(more)])


def pad(
    rows: Arrays,
    labels: Labels,
    pad_id: int,
    device: torch.device,
    pad_to: int = 0,
    mask: str = "key_padding",
    weights: Floats | None = None,
) -> Batch:
    """Return one row a sample, each filled up with ``pad_id`` to the longest, or to ``pad_to`` where that is more.

    ``mask``: as in ``attention_mask``. ``weights``: of each row's label tokens, (n,); None: all 1.
    """
    lengths = [len(row) for row in rows]
    longest = max(*lengths, pad_to)
    by_token = not isinstance(labels, np.ndarray)
    # masks of pairs are large: they are made where they are used
    attention = attention_mask(mask, lengths, longest, by_token, CPU if mask == "key_padding" else device)
    return Batch(
        _to_device(_filled(rows, longest, pad_id), device),
        _to_device(attention, device),
        _to_device(labels if isinstance(labels, np.ndarray) else _filled(labels, longest, NOT_LEARNT), device),
        weights=None if weights is None else _to_device(_filled(_spread(weights, rows), longest, 0.0), device),
    )


def pack(rows: Arrays, labels: Labels, device: torch.device, weights: Floats | None = None) -> Batch:
    """Return one row for all samples, in rising order of length, so that equal lengths lie side by side.

    ``weights``: as in ``pad``.
    """
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    lengths = tuple(len(rows[i]) for i in order)
    offsets = np.cumsum((0, *lengths), dtype=np.int32)

    def joined(pieces: Arrays, dtype: type) -> npt.NDArray[Any]:
        return np.concatenate([pieces[i] for i in order]).astype(dtype)[None]

    if isinstance(labels, np.ndarray):
        row_labels = labels[order]
    else:
        row_labels = joined(labels, np.int64)
        row_labels[0, offsets[:-1]] = NOT_LEARNT
    return Batch(
        input_ids=_to_device(joined(rows, np.int64), device),
        attention_mask=None,
        labels=_to_device(row_labels, device),
        position_ids=_to_device(joined([np.arange(len(row)) for row in rows], np.int64), device),
        packing=Packing(lengths, _to_device(offsets, device)),
        weights=None if weights is None else _to_device(joined(_spread(weights, rows), np.float64), device),
    )


def _filled(rows: Arrays, length: int, value: float) -> npt.NDArray[Any]:
    """Return (len(rows), length), each row filled up with ``value``; int64 or float64, as ``value`` is."""
    table = np.full((len(rows), length), value)
    for line, row in zip(table, rows, strict=True):
        line[: len(row)] = row
    return table


def _spread(weights: Floats, rows: Arrays) -> list[Floats]:
    return [np.full(len(row), weight) for row, weight in zip(rows, weights.tolist(), strict=True)]


def label_tokens(labels: Arrays) -> Int:
    """Return how many tokens of each row are learnt, (n,); none precedes a row's first one to predict it from."""
    return np.array([np.count_nonzero(row[1:] != NOT_LEARNT) for row in labels], dtype=np.int64)


@dataclass(frozen=True)
class Collator:
    """The rows of a micro-batch, padded or packed into one, on the device.

    ``labels``: of a classifier, by id; None for a language model, whose rows have labels. ``weigh``: the weights of a
    language model's samples, where they differ from token to token. ``mask``: the kind of ``attention_mask`` for padded
    rows.

    Slices whose tokens attend within documents are always packed, each document's piece as a sample of the row.

    ``shape``: rows and length of a padded micro-batch, from its samples and the longest of them; by default these.
    """

    rows: Rows
    labels: Int | None
    pad_id: int
    device: torch.device
    mask: str = "key_padding"
    weigh: Weigh | None = None
    shape: Callable[[int, int], tuple[int, int]] = padded_tokens.shape

    def __call__(self, ids: Ids, packed: bool = False, pad_to: int = 0) -> Batch:
        """Return the batch of these samples; ``packed``: into one row, else padded to at least ``pad_to``."""
        if isinstance(self.rows, SliceTable) and self.rows.within_documents:
            pieces = self.rows.pieces(ids)
            counts = np.bincount(pieces.slices, label_tokens(pieces.labels), len(ids)).astype(np.int64)
            weights = None if self.weigh is None else self.weigh(ids, counts)[pieces.slices]
            return pack(pieces.rows, pieces.labels, self.device, weights)
        rows = [self.rows.row(int(i)) for i in ids]
        labels: Labels
        if self.labels is not None:
            labels, weights = self.labels[ids], None
        else:
            labels = [self.rows.labels(int(i)) for i in ids]
            weights = None if self.weigh is None else self.weigh(ids, label_tokens(labels))
        if packed:
            return pack(rows, labels, self.device, weights)
        count, length = self.shape(len(rows), max(pad_to, *map(len, rows)))
        filled = filled_up(rows, labels, weights, count)
        return pad(*filled[:2], self.pad_id, self.device, length, self.mask, filled[2])

    def parts(self, id: int, parts: Sequence[Part], gather: Gather) -> Batch:
        """Return the row of these parts of a sample; ``gather``: as of :class:`PartRow`.

        Raises DataError where the parts that there are do not end where the sample does.
        """
        row, positions = self.rows.row(id), positions_of(parts)
        last = int(positions.max())
        if last >= len(row):
            raise DataError(f"sample {id} has {len(row)} tokens, and a part of it ends at {last + 1}: plan its lengths")
        weights = None
        if self.labels is not None:
            labels = np.where(positions[:1] == 0, self.labels[id], NOT_LEARNT)  # with the token that the head reads
        else:
            of_tokens = self.rows.labels(id)
            labels = np.append(of_tokens[1:], NOT_LEARNT)[positions].astype(np.int64)
            labels = np.append(NOT_LEARNT, labels)[None]
            if self.weigh is not None:
                weight = self.weigh(np.array([id]), label_tokens([of_tokens]))
                weights = np.full(labels.shape, weight[0])
        ranges = tuple(each for part in parts for each in part.ranges)
        return Batch(
            input_ids=_to_device(row[positions].astype(np.int64)[None], self.device),
            attention_mask=None,
            labels=_to_device(labels, self.device),
            position_ids=_to_device(positions.astype(np.int64)[None], self.device),
            packing=PartRow(ranges, gather, _to_device(np.array([0, len(positions)], dtype=np.int32), self.device)),
            weights=None if weights is None else _to_device(weights, self.device),
        )

    def part_targets(self, id: int, part: Part) -> int:
        """Return the label tokens that a part of a language model's sample predicts."""
        following = np.append(self.rows.labels(id)[1:], NOT_LEARNT)
        return int(np.count_nonzero(following[positions_of([part])] != NOT_LEARNT))

    def some(self, ids: Ids, count: int) -> Ids:
        """Return ``count`` of these ids, spread evenly over their lengths, the longest among them."""
        order = np.argsort([-len(self.rows.row(int(i))) for i in ids], kind="stable")
        return ids[order[np.arange(count) * len(ids) // count]]

    def synthetic(self, count: int, length: int, shorter: int = 0) -> Batch:
        """Return ``count`` padded samples of ``length`` tokens with id 1, for probes and warm-up.

        The last one has ``shorter`` tokens fewer. Their labels are 0, or every token.
        """
        rows = [np.ones(length, dtype=np.int64)] * (count - 1) + [np.ones(length - shorter, dtype=np.int64)]
        labels = rows if self.labels is None else np.zeros(count, dtype=np.int64)
        weights = None if self.weigh is None else np.ones(count)
        return pad(rows, labels, self.pad_id, self.device, length, self.mask, weights)


def _to_device(array: Any, device: torch.device) -> torch.Tensor:
    """Return an array, or a tensor of the CPU or of this device, as a tensor on the device."""
    tensor = torch.as_tensor(array)
    if device.type == "cuda" and not tensor.is_cuda:  # pinned memory copies without making the host wait
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor


@contextmanager
def without_trace(module: torch.nn.Module) -> Iterator[None]:
    """Let the module run synthetic samples that draw no dropout, move no running statistics and compile nothing."""
    training = {part: part.training for part in module.modules()}
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    module.eval()
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        for part, mode in training.items():
            part.training = mode
        for name, buffer in buffers.items():
            if not torch.equal(module.get_buffer(name), buffer):
                module.get_buffer(name).copy_(buffer)
