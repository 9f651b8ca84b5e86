"""The benchmark of masks measures them side by side, and notices a mask that hides nothing."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MistralConfig

from ddpsched.config import RunConfig, parse
from ddpsched.training import collate, masks
from experiments.benchmarks.masks import configs, main, measure, report


def config_of(task: str, **model: Any) -> RunConfig:
    table = {"task": task, **model}
    return parse({"steps": 1, "model": table, "executor": {"kind": "virtual", "device": "cpu"}})


@pytest.mark.parametrize(("task", "kinds"), [("classification", 2), ("causal_lm", 3)])
def test_a_row_a_kind(task: str, kinds: int) -> None:
    rows = measure(config_of(task), 3, 16, rounds=3)
    assert [row["kind"] for row in rows] == ["key_padding", "per_sample", "shared"][:kinds]
    assert [row["mask_bytes"] for row in rows] == [3 * 16 * 8, 3 * 16 * 16, 16 * 16][:kinds]  # int64, then bool
    assert max(row["apart"] for row in rows) <= 1e-6
    assert all(row["seconds"] > 0 for row in rows)
    assert all(0.1 < row["ratio"]["ratio"] < 10 for row in rows[1:])
    assert report(rows).row_count == kinds


def test_a_mask_that_hides_nothing_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def hiding_nothing(kind: str, *others: Any) -> torch.Tensor:
        mask = masks.attention_mask(kind, *others)
        return mask if kind == "key_padding" else torch.ones_like(mask)

    monkeypatch.setattr(collate, "attention_mask", hiding_nothing)
    rows = measure(config_of("causal_lm"), 3, 16, rounds=3)
    assert min(row["apart"] for row in rows[1:]) > 1e-3


def test_a_model_that_refuses_a_kind_has_a_row_that_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    MistralConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=64, max_position_embeddings=90, sliding_window=8,
    ).save_pretrained(tmp_path)  # fmt: skip
    assert main(["shape=3x16", "model.name=tiny"]) == 0
    file = tmp_path / "run.toml"
    file.write_text(f'steps = 1\n[model]\ntask = "causal_lm"\nname = "{tmp_path}"\n[executor]\ndevice = "cpu"\n')
    assert main(["shape=3x16", str(file), "model.dropout=0"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("refused") == 2
    assert "some of its layers reach 8 tokens far" in printed


def test_without_a_config_both_tasks() -> None:
    assert [config.model.task for config in configs(["model.dropout=0"])] == ["classification", "causal_lm"]
