"""Collation: the inputs of a model and its loss for a micro-batch, padded and packed."""

import numpy as np
import pytest
import torch

from ddpsched.data.tokenizer import Row
from ddpsched.training.collate import Batch, Collator

CPU = torch.device("cpu")
PROMPTS = (2, 0, 3, 1)
LENGTHS = (5, 3, 4, 6)
PAD = 99


class Table:
    """Sample i has tokens 10 * i, 10 * i + 1, ... behind a prompt of PROMPTS[i] of them."""

    def row(self, id: int) -> Row:
        return np.arange(10 * id, 10 * id + LENGTHS[id], dtype=np.int32)

    def labels(self, id: int) -> Row:
        labels = self.row(id)
        labels[: PROMPTS[id]] = -100
        return labels


def learnt(batch: Batch) -> list[tuple[int, int]]:
    """Return the pairs of a token and the next one that are learnt."""
    labels, tokens = batch.labels[:, 1:], batch.input_ids
    return [(int(tokens[i, j]), int(tokens[i, j + 1])) for i, j in (labels != -100).nonzero().tolist()]


# each text token with the one before it, except a sample's first
EXPECTED = sorted(
    (10 * i + j - 1, 10 * i + j) for i in range(4) for j in range(max(1, PROMPTS[i]), LENGTHS[i])
)  # fmt: skip


def test_padded_labels() -> None:
    batch = Collator(Table(), None, PAD, CPU)(np.arange(4))
    assert len(batch) == 4
    assert batch.labels.dtype == batch.input_ids.dtype == torch.int64
    assert batch.labels.shape == batch.input_ids.shape == (4, 6)
    assert batch.labels[1].tolist() == [10, 11, 12, -100, -100, -100]
    assert batch.labels[2].tolist() == [-100, -100, -100, 23, -100, -100]
    assert batch.input_ids[2].tolist() == [20, 21, 22, 23, PAD, PAD]
    assert sorted(learnt(batch)) == EXPECTED
    where = batch.labels != -100
    assert torch.equal(batch.labels[where], batch.input_ids[where])


def test_packed_labels_never_cross_samples() -> None:
    batch = Collator(Table(), None, PAD, CPU)(np.arange(4), packed=True)
    assert len(batch) == 4
    assert batch.labels.shape == batch.input_ids.shape == (1, sum(LENGTHS))
    # in rising order of length: 1, 2, 0, 3
    assert batch.labels[0].tolist() == [-100, 11, 12, *[-100] * 3, 23, -100, -100, 2, 3, 4, -100, *range(31, 36)]
    assert sorted(learnt(batch)) == EXPECTED
    assert (2, 10) not in learnt(batch)
    unmasked = Batch(batch.input_ids, None, batch.input_ids)
    assert (12, 20) in learnt(unmasked), "this test sees samples that follow one another"


@pytest.mark.parametrize("packed", [False, True])
def test_weights_make_samples_equal(packed: bool) -> None:
    batch = Collator(Table(), None, PAD, CPU, weigh=lambda _, counts: 1 / np.maximum(counts, 1))(np.arange(4), packed)
    assert batch.weights is not None
    assert (batch.weights.dtype, batch.weights.shape) == (torch.float64, batch.labels.shape)
    of_sample = (batch.input_ids // 10)[:, 1:]
    counted = batch.labels[:, 1:] != -100
    for i in range(4):
        assert float(batch.weights[:, 1:][counted & (of_sample == i)].sum()) == pytest.approx(1)
    assert Collator(Table(), None, PAD, CPU)(np.arange(4), packed).weights is None


def test_rows_are_filled_up_as_far_as_asked() -> None:
    collate = Collator(Table(), None, PAD, CPU)
    batch = collate(np.array([1, 2]), pad_to=7)
    assert batch.input_ids.shape == batch.labels.shape == (2, 7)
    assert batch.input_ids[0].tolist() == [10, 11, 12, *[PAD] * 4]
    assert batch.labels[1].tolist() == [*[-100] * 3, 23, *[-100] * 3]
    assert batch.attention_mask is not None
    assert batch.attention_mask.sum(1).tolist() == [3, 4]
    assert collate(np.array([1, 2]), pad_to=3).input_ids.shape == (2, 4), "the longest is never cut"
    classes = Collator(Table(), np.array([0, 1, 1, 0]), PAD, CPU)(np.array([1, 2]), pad_to=7)
    assert (len(classes), classes.input_ids.shape, classes.labels.tolist()) == (2, (2, 7), [1, 1])


@pytest.mark.parametrize(
    ("mask", "shape", "dtype"),
    [
        ("key_padding", (2, 4), torch.int64),
        ("per_sample", (2, 1, 4, 4), torch.bool),
        ("shared", (1, 1, 4, 4), torch.bool),
    ],
)
def test_masks(mask: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    batch = Collator(Table(), None, PAD, CPU, mask)(np.array([1, 2]))
    assert batch.attention_mask is not None
    assert (batch.attention_mask.shape, batch.attention_mask.dtype) == (shape, dtype)
    assert batch.inputs["attention_mask"] is batch.attention_mask


def test_synthetic_samples() -> None:
    collate = Collator(Table(), None, PAD, CPU, weigh=lambda _, counts: 1 / np.maximum(counts, 1))
    batch = collate.synthetic(3, 4, shorter=1)
    assert batch.input_ids.tolist() == [[1, 1, 1, 1]] * 2 + [[1, 1, 1, PAD]]
    assert batch.labels.tolist() == [[1, 1, 1, 1]] * 2 + [[1, 1, 1, -100]]
    assert batch.weights is not None
    assert batch.attention_mask is not None
    assert batch.attention_mask.sum(1).tolist() == [4, 4, 3]
    assert Collator(Table(), np.zeros(4, dtype=np.int64), PAD, CPU).synthetic(3, 4).labels.tolist() == [0, 0, 0]
