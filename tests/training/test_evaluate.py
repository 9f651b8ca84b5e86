"""Evaluation of language models: sums over label tokens do not depend on batches or ranks."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from prompted import write_prompted

from ddpsched.config import RunConfig, parse
from ddpsched.run_loop import run
from ddpsched.run_totals import _perplexity
from ddpsched.training import evaluate as module
from ddpsched.training.learner import Learner


def config_of(tmp_path: Path, target: str = "token_mean") -> RunConfig:
    return parse(
        {
            "name": target,
            "outputs": str(tmp_path),
            "steps": 2,
            "global_batch": 8,
            "world_size": 2,
            "data": {**write_prompted(tmp_path / "data"), "held_out": 0.25},
            "model": {"task": "causal_lm"},
            "train": {"target": target, "learning_rate": 1e-3},
        }
    )


@pytest.mark.parametrize("target", ["token_mean", "sample_mean"])
def test_sums_over_label_tokens_by_hand(tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(tmp_path, target)
    samples = config.load_samples()
    learner = Learner(config, samples, torch.device("cpu"))
    assert samples.dev is not None
    assert len(samples.dev) == 16
    model, losses, right, targets = learner.model.eval(), 0.0, 0, []
    for id in range(16):  # one at a time, without padding
        row, prompt = torch.from_numpy(samples.dev.row(id).astype(np.int64)), int(samples.dev.parts([id])[0, 0])
        with torch.no_grad():
            logits = model(input_ids=row[None]).logits[0, prompt - 1 : -1]
        losses += float(F.cross_entropy(logits, row[prompt:], reduction="sum"))
        right += int((logits.argmax(-1) == row[prompt:]).sum())
        targets += row[prompt:].tolist()
    found = learner.evaluate()
    assert found is not None
    assert found.loss_sum == pytest.approx(losses, rel=1e-5)
    assert (found.num_correct, found.num_targets, found.num_samples) == (right, len(targets), 16)
    assert found.count == len(targets)
    assert found.majority == np.bincount(targets).max() / len(targets)
    assert model.training
    shares = [learner.evaluate(rank, 3) for rank in range(3)]
    assert sum(each.loss_sum for each in shares if each) == pytest.approx(losses, rel=1e-5)
    assert sum(each.num_targets or 0 for each in shares if each) == len(targets)
    assert {each.majority for each in shares if each} == {found.majority}
    monkeypatch.setattr(module, "MOST_LOGITS", 1)  # one sample a batch
    alone = learner.evaluate()
    assert alone is not None
    assert alone.loss_sum == pytest.approx(losses, rel=1e-5)


def test_batches_are_bounded_by_tokens_and_by_logits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(tmp_path)
    samples = config.load_samples()
    learner = Learner(config, samples, torch.device("cpu"))
    shapes: list[tuple[int, int]] = []
    learner.model.register_forward_pre_hook(
        lambda module, args, inputs: shapes.append(tuple(inputs["input_ids"].shape)), with_kwargs=True
    )
    monkeypatch.setattr(module, "MOST_LOGITS", 100 * samples.vocab_size)
    learner.evaluate()
    assert all(count * length <= 100 or count == 1 for count, length in shapes)
    assert sum(count for count, _ in shapes) == 16 > len(shapes)


def test_rows_of_a_run(tmp_path: Path) -> None:
    rows = {}
    for target in ("token_mean", "sample_mean"):
        (line,) = (run(config_of(tmp_path, target)) / "evaluations.jsonl").read_text().splitlines()
        rows[target] = json.loads(line)
    for row in rows.values():
        assert list(row) == ["step", "loss", "accuracy", "num_samples", "majority", "perplexity", "num_targets"]
        assert row["perplexity"] == pytest.approx(math.exp(row["loss"]))
        assert 0 < row["majority"] < 1
        assert row["num_samples"] == 16
        assert row["num_targets"] > 16
    classifier = parse({"name": "c", "outputs": str(tmp_path), "steps": 1, "data": {"size": 60}})
    row = json.loads((run(classifier) / "evaluations.jsonl").read_text())
    assert row["perplexity"] is row["num_targets"] is None


def test_perplexity_beyond_numbers_is_null() -> None:
    assert _perplexity(0.0) == 1
    assert _perplexity(2.5) == math.exp(2.5)
    assert _perplexity(1e4) is None
    assert _perplexity(math.nan) is None
