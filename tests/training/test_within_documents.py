"""Slices of joined documents, attending within documents: each piece as if it were alone.

``pytest -rP tests/training/test_within_documents.py`` prints the differences.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from gradients import kept_gradients
from torch.nn import functional
from transformers import BloomConfig

from ddpsched.config import RunConfig, parse
from ddpsched.data.embedded.sentences import VOCABULARY, embedded_tokenizer
from ddpsched.data.samples import Samples
from ddpsched.data.token_table import SliceTable
from ddpsched.errors import ConfigError
from ddpsched.run_loop import run
from ddpsched.step_plan import Microbatch, StepPlan
from ddpsched.training.collate import Batch
from ddpsched.training.learner import Learner
from ddpsched.training.model import build_model
from ddpsched.training.virtual import VirtualExecutor

CPU = torch.device("cpu")
PRECISIONS = [("float32", 1e-6), ("float64", 1e-12)]
LENGTH = 32


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write prompts and texts of embedded words, some longer than a slice, and their tokenizer."""
    random, words = np.random.default_rng(0), sorted(VOCABULARY)
    lines = []
    for _ in range(60):
        prompt, text = (" ".join(random.choice(words, random.integers(1, most))) for most in (8, 40))
        lines.append(json.dumps({"question": prompt, "answer": text}))
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    embedded_tokenizer().save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def config_of(folder: Path, within: bool, precision: str = "float32", **tables: Any) -> RunConfig:
    data = {
        "path": str(folder / "train.jsonl"), "text": "answer", "prompt": "question", "tokenizer": str(folder),
        "max_length": LENGTH, "concatenate": True, "within_documents": within, "held_out": 0.1,
    }  # fmt: skip
    base = {
        "steps": 3, "global_batch": 6, "world_size": 2, "outputs": str(folder / "outputs"), "data": data,
        "model": {"task": "causal_lm", "dropout": 0.0}, "policy": {"kind": "static"},
        "executor": {"kind": "virtual", "device": "cpu"},
    }  # fmt: skip
    train = {"precision": precision, "max_grad_norm": 1e9, **tables.pop("train", {})}
    return parse({**base, "train": train, **tables})


def slices_of(samples: Samples) -> SliceTable:
    assert isinstance(samples.train, SliceTable)
    return samples.train


def fresh_model(config: RunConfig, samples: Samples) -> Any:
    """Return the model with this seed's initial weights and transformers' unchanged attention."""
    torch.manual_seed(config.seed)
    model = build_model(config.model, 2, samples.vocab_size, samples.pad_id)
    return model.to(getattr(torch, config.train.precision)).eval()


def alone(model: Any, row: np.ndarray) -> torch.Tensor:
    """Return logits, (tokens, words)."""
    tokens = torch.from_numpy(row.astype(np.int64))[None]
    return model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits[0]


@pytest.mark.parametrize(("precision", "within"), PRECISIONS)
def test_pieces_are_what_they_are_alone(folder: Path, precision: str, within: float) -> None:
    config = config_of(folder, True, precision)
    samples = config.load_samples()
    learner, model = Learner(config, samples, CPU), fresh_model(config, samples)
    ids = np.array([3, 0, 7])
    rows = slices_of(samples).pieces(ids).rows
    assert len(rows) > len(ids) + 2
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))  # the order within a packed row
    with torch.no_grad():
        expected = torch.cat([alone(model, rows[i]) for i in order])
        found = learner.model.eval()(**learner.collate(ids).inputs).logits[0]
        off = torch.cat([alone(model, slices_of(samples).row(int(i))) for i in ids])
        joined = torch.cat([alone(model, row) for row in rows])  # both in the slices' order
    apart, mixed = float((found - expected).abs().max()), float((off - joined).abs().max())
    print(f"{precision}: pieces {apart:.1e}, with documents in each other's sight {mixed:.1e}")
    assert apart <= within
    assert mixed > 1e-2, "the test cannot tell whether documents see each other"


def expected_gradient(config: RunConfig, samples: Samples, ids: np.ndarray) -> np.ndarray:
    """Return the gradient with each piece alone.

    Each label token weighs 1/N, or 1/n of its slice and 1/B of that.
    """
    model, table = fresh_model(config, samples), slices_of(samples)
    for id in ids.tolist():
        count = int(table.num_targets(id)) * len(ids)
        if config.target == "token_mean":
            count = int(table.num_targets(ids).sum())
        rows, labels, _ = table.pieces([id])
        for row, row_labels in zip(rows, labels, strict=True):
            logits, learnt = alone(model, row)[:-1], torch.from_numpy(row_labels[1:].astype(np.int64))
            (functional.cross_entropy(logits, learnt, reduction="sum") / max(1, count)).backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return torch.cat([gradient.reshape(-1) for gradient in gradients]).numpy()


@pytest.mark.parametrize("target", ["token_mean", "sample_mean"])
@pytest.mark.parametrize(("precision", "within"), PRECISIONS)
def test_the_gradient_of_a_step(folder: Path, precision: str, within: float, target: str) -> None:
    plan = StepPlan(0, 0, ((Microbatch(np.array([5, 1])), Microbatch(np.array([0]))), (Microbatch(np.array([8, 2])),)))
    errors = {}
    for switch in (True, False):
        config = config_of(folder, switch, precision, train={"target": target})
        samples = config.load_samples()
        expected = expected_gradient(config_of(folder, True, precision, train={"target": target}), samples, plan.ids)
        with kept_gradients() as kept:
            VirtualExecutor(config, samples).execute(plan)
        errors[switch] = float(np.linalg.norm(kept[0] - expected) / np.linalg.norm(expected))
    print(f"{target}, {precision}: {errors[True]:.1e}, with documents in each other's sight {errors[False]:.1e}")
    assert errors[True] <= within
    assert errors[False] > 1e-2


def test_nothing_is_padded_but_the_last_slice(folder: Path) -> None:
    for within in (False, True):
        samples = config_of(folder, within).load_samples()
        table, learner = slices_of(samples), Learner(config_of(folder, within), samples, CPU)
        last = len(table) - 1
        assert table.lengths(range(last)).tolist() == [LENGTH] * last
        assert table.lengths(last) < LENGTH, "a rest, or the test says nothing of it"
        full, rest = learner.collate(np.arange(last)), learner.collate(np.array([0, last]))
        assert full.input_ids.numel() == last * LENGTH
        assert rest.input_ids.numel() == (LENGTH + table.lengths(last) if within else 2 * LENGTH)
        for batch, ids in ((full, np.arange(last)), (rest, np.array([0, last]))):
            assert counted(batch) == table.num_targets(ids).sum()


def counted(batch: Batch) -> int:
    """Count the labels of a loss; a row's first token is none."""
    return int((batch.labels[:, 1:] != -100).sum())


@pytest.mark.parametrize("policy", ["static", "balanced", "packed", "minmax"])
@pytest.mark.parametrize("within", [False, True])
def test_a_run(folder: Path, within: bool, policy: str) -> None:
    config = config_of(folder, within, policy={"kind": policy})
    rows = pq.read_table(run(config) / "records.parquet").to_pylist()
    table = slices_of(config.load_samples())
    assert len(rows) == 6
    assert sum(row["num_samples"] for row in rows) == 18 <= len(table), "the rest of an epoch would be padded"
    assert sum(row["num_tokens"] for row in rows) >= 17 * LENGTH
    targets, least = sum(row["num_targets"] for row in rows), np.sort(table.num_targets(range(len(table))))
    assert least[:18].sum() <= targets <= least[-18:].sum()


def test_models_that_cannot_are_refused(folder: Path) -> None:
    BloomConfig(vocab_size=2000, hidden_size=32, n_layer=2, n_head=4).save_pretrained(folder / "bloom")
    config = config_of(folder, True, model={"task": "causal_lm", "name": str(folder / "bloom")})
    with pytest.raises(ConfigError, match=r"cannot run packed: .*; use .* without data.within_documents"):
        Learner(config, config.load_samples(), CPU)
