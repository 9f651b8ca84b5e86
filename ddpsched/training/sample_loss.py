"""The difficulty of a sample for a model: its loss under given weights."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from ddpsched.config import RunConfig
from ddpsched.data.encode import Encoded
from ddpsched.data.samples import tokenizer_of
from ddpsched.data.table_files import Chunk
from ddpsched.data.tokenizer import pad_id
from ddpsched.errors import ConfigError, DataError
from ddpsched.training.collate import NOT_LEARNT, pad
from ddpsched.training.evaluate import longest_first
from ddpsched.training.learner import pick_device
from ddpsched.training.loss import token_losses
from ddpsched.training.weights import weights_digest
from ddpsched.world import World


class SampleLoss:
    """The loss of each of a chunk's samples: a classifier's cross-entropy, a language model's mean over label tokens.

    Batches hold samples of one chunk, longest first, so a sample's loss does not depend on the rank that computes it.
    Raises ConfigError where the config's model has no pretrained weights.
    """

    def __init__(self, config: RunConfig) -> None:
        from ddpsched.training.model import build_model

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
    def __call__(self, encoded: Encoded, chunk: Chunk) -> npt.NDArray[np.float64]:
        """Return the losses of the chunk's samples: (n,), float64 computed in float32."""
        rows = np.split(encoded.flat, np.cumsum(encoded.lengths)[:-1])
        labels: Any = self._classes(chunk) if self._classifies else _labels(rows, encoded.prompts)
        losses = np.empty(len(rows))
        for ids in longest_first(encoded.lengths, self._vocab_size):
            some = labels[ids] if self._classifies else [labels[i] for i in ids]
            batch = pad([rows[i] for i in ids], some, self._pad_id, self._device, mask=self._config.model.mask)
            logits = self._model(**batch.inputs).logits
            losses[ids] = _losses(logits, batch.labels).double().cpu().numpy()
        return losses

    def _classes(self, chunk: Chunk) -> npt.NDArray[np.int64]:
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


def _labels(rows: list[npt.NDArray[Any]], prompts: npt.NDArray[np.int64]) -> list[npt.NDArray[Any]]:
    """Return each row's tokens as labels, without its first ``prompts`` ones."""
    return [np.where(np.arange(len(row)) < prompt, NOT_LEARNT, row) for row, prompt in zip(rows, prompts, strict=True)]


def _losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return each sample's loss: (count,)."""
    if labels.dim() == 1:
        return F.cross_entropy(logits.float(), labels, reduction="none")
    learnt = (labels[:, 1:] != NOT_LEARNT).sum(1)
    return token_losses(logits, labels).sum(1) / learnt.clamp(min=1)
