"""The dev split: loss and right answers, of samples or of label tokens."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ddpsched.data.datasets import Split
from ddpsched.data.samples import Samples
from ddpsched.data.slices import SliceTable
from ddpsched.data.token_table import TokenTable
from ddpsched.training.collate import Collator
from ddpsched.training.loss import following, loss_sum
from ddpsched.training.sync.fsdp import whole

MOST_TOKENS = 4096  # padded, per batch
MOST_LOGITS = 2**25  # numbers per batch; a language model has a vocabulary of them for each token


@dataclass(frozen=True)
class Evaluation:
    """Sums over the dev split, or over a share of it.

    ``num_targets``: label tokens, of which loss and right answers are then sums; None for a classifier, where they are
    sums over samples. ``majority``: share of the most frequent label in the whole split.
    """

    loss_sum: float
    num_correct: float
    num_samples: float
    majority: float
    num_targets: float | None = None

    @property
    def count(self) -> float:
        """Number of samples, or of label tokens, that loss and right answers are sums over."""
        return self.num_samples if self.num_targets is None else self.num_targets


@torch.no_grad()
def evaluate(
    model: torch.nn.Module, samples: Samples, mask: str, device: torch.device, rank: int = 0, size: int = 1
) -> Evaluation | None:
    """Evaluate every ``size``-th dev sample from ``rank`` on; return None without a dev split."""
    dev, split = samples.dev, samples.dataset.dev
    if dev is None or split is None:
        return None
    ids = np.arange(rank, len(dev), size)
    collate = Collator(dev, split.labels, samples.pad_id, device, mask)
    model.eval()
    total, correct = 0.0, 0
    with whole(model):
        for batch_ids in longest_first(dev.lengths(ids), None if split.labels is not None else samples.vocab_size):
            batch = collate(ids[batch_ids])
            logits = model(**batch.inputs).logits
            total += float(loss_sum(logits, batch.labels))
            # label tokens that are not learnt have label -100, which no answer is
            labels = batch.labels if batch.labels.dim() == 1 else following(batch.labels, -100)
            correct += int((logits.argmax(-1) == labels).sum())
    model.train()
    num_targets = None if split.labels is not None else int(dev.num_targets(ids).sum())
    return Evaluation(total, correct, len(ids), _majority(dev, split), num_targets)


def longest_first(lengths: npt.NDArray[np.int64], vocab_size: int | None) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the positions of samples in batches that fit into memory, the longest samples first.

    ``lengths``: (n,), in tokens. ``vocab_size``: of a language model; None for a classifier, whose logits are few.
    """
    most = MOST_TOKENS if vocab_size is None else min(MOST_TOKENS, MOST_LOGITS // vocab_size)
    order = np.argsort(-lengths, kind="stable")
    while len(order):
        count = max(1, most // int(lengths[order[0]]))
        yield order[:count]
        order = order[count:]


def _majority(dev: TokenTable | SliceTable, split: Split) -> float:
    """Return the share of the most frequent label."""
    if split.labels is not None:
        return float(np.bincount(split.labels).max() / len(split))
    labels = np.concatenate([dev.labels(id)[1:] for id in range(len(dev))])
    counts = np.bincount(labels[labels >= 0])
    return float(counts.max() / counts.sum())
