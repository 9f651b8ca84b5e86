"""Losses without gradients: of the dev split, with right answers; and of each sample, its difficulty for a model."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from ddpsched.config import RunConfig
from ddpsched.data.samples import Samples, Split, tokenizer_of
from ddpsched.data.table_files import Chunk
from ddpsched.data.token_table import SliceTable, TokenTable
from ddpsched.data.tokenizer import Encoded, pad_id
from ddpsched.errors import ConfigError, DataError
from ddpsched.step_plan import Ids
from ddpsched.training.clock import pick_device
from ddpsched.training.collate import NOT_LEARNT, Collator, pad
from ddpsched.training.loss import following, loss_sum, token_losses
from ddpsched.training.model import build_model, weights_digest
from ddpsched.training.sync.fsdp import whole
from ddpsched.world import World

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
    with whole(model), torch.compiler.set_stance("force_eager"):  # dev samples have other shapes than steps
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


def longest_first(lengths: Ids, vocab_size: int | None) -> Iterator[Ids]:
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


class SampleLoss:
    """The loss of each of a chunk's samples: a classifier's cross-entropy, a language model's mean over label tokens.

    Batches hold samples of one chunk, longest first, so a sample's loss does not depend on the rank that computes it.
    Raises ConfigError where the config's model has no pretrained weights.
    """

    def __init__(self, config: RunConfig) -> None:
        if config.model.weights != "pretrained":
            raise ConfigError(
                "--metric loss is the loss under a given model; name it with model.name=FOLDER (or a hub name) and "
                "model.weights=pretrained"
            )
        tokenizer = tokenizer_of(config.data, config.model.name)
        self._config, self._pad_id = config, pad_id(tokenizer)
        self._device = pick_device(config, World.detect().local_rank)
        torch.set_num_threads(config.executor.threads)
        self._classifies, vocab_size = config.model.task == "classification", tokenizer.get_vocab_size()
        self._vocab_size = None if self._classifies else vocab_size
        model = build_model(config.model, config.data.num_labels, vocab_size, self._pad_id)
        self.version = f"{config.model.task}, weights {weights_digest(model)}"
        self._model = model.to(self._device).eval()
        self.wanted = {"data.label": config.data.label} if self._classifies else {}

    @torch.no_grad()
    def __call__(self, encoded: Encoded, chunk: Chunk) -> np.ndarray:
        """Return the losses of the chunk's samples: (n,), float64 computed in float32."""
        rows = np.split(encoded.flat, np.cumsum(encoded.lengths)[:-1])
        # a language model's labels are a row's tokens, without those of the prompt
        prompts = zip(rows, encoded.prompts, strict=True)
        learnt = [np.where(np.arange(len(row)) < prompt, NOT_LEARNT, row) for row, prompt in prompts]
        labels: Any = self._classes(chunk) if self._classifies else learnt
        losses = np.empty(len(rows))
        for ids in longest_first(encoded.lengths, self._vocab_size):
            some = labels[ids] if self._classifies else [labels[i] for i in ids]
            batch = pad([rows[i] for i in ids], some, self._pad_id, self._device, mask=self._config.model.mask)
            logits = self._model(**batch.inputs).logits
            if self._classifies:
                values = F.cross_entropy(logits.float(), batch.labels, reduction="none")
            else:
                counts = (batch.labels[:, 1:] != NOT_LEARNT).sum(1)
                values = token_losses(logits, batch.labels).sum(1) / counts.clamp(min=1)
            losses[ids] = values.double().cpu().numpy()
        return losses

    def _classes(self, chunk: Chunk) -> Ids:
        column, most = self._config.data.label, self._config.data.num_labels
        classes = np.empty(chunk.num_rows, dtype=np.int64)
        for number, value in enumerate(chunk.columns[column]):
            text = str(value)
            if not (text.isdecimal() and int(text) < most):
                raise DataError(
                    f"row {chunk.first + number + 1}, column {column!r}: {value!r:.60} is not an integer from 0 to "
                    f"{most - 1} (data.num_labels = {most})"
                )
            classes[number] = int(text)
        return classes
