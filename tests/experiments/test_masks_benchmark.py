"""The benchmark of masks measures them side by side, and notices a mask that hides nothing."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import MistralConfig

from ddpsched.config import RunConfig, parse
from ddpsched.terminal import plain_console
from ddpsched.training import collate, masks
from experiments.benchmarks.bench import AA
from experiments.benchmarks.masks import Runner, configs, main, measure, measure_all, report


def config_of(task: str, **model: Any) -> RunConfig:
    table = {"task": task, **model}
    return parse({"steps": 1, "model": table, "executor": {"kind": "virtual", "device": "cpu"}})


@pytest.mark.parametrize(("task", "kinds"), [("classification", 2), ("causal_lm", 3)])
def test_a_row_a_kind(task: str, kinds: int) -> None:
    rows, seconds = measure(config_of(task), 3, 16, rounds=3)
    names = ["key_padding", "per_sample", "shared"][:kinds]
    assert [row["kind"] for row in rows] == names
    assert [row["mask_bytes"] for row in rows] == [3 * 16 * 8, 3 * 16 * 16, 16 * 16][:kinds]  # int64, then bool
    assert max(row["apart"] for row in rows) <= 1e-6
    assert list(seconds) == [names[0], AA, *names[1:]]
    assert all(each.shape == (3,) and each.min() > 0 for each in seconds.values())


def printed(launches: list[Any]) -> list[str]:
    console = plain_console(width=170)
    with console.capture() as capture:
        console.print(report(launches))
    return [line.strip() for line in capture.get().splitlines() if "3 x 16" in line]


def test_a_line_a_kind_and_one_for_the_a_a() -> None:
    chosen = [config_of("classification"), config_of("causal_lm")]
    lines = printed([measure_all(chosen, [(3, 16)], 8, seed) for seed in range(2)])
    words = [line.split()[5] for line in lines]
    assert words == ["key_padding", AA, "per_sample", "key_padding", AA, "per_sample", "shared"]
    verdict = re.compile(r"\([\d.]+ to [\d.]+\) +(slower|faster|differs|not told apart( from A/A)?)$")
    assert [bool(verdict.search(line)) for line in lines] == [word != "key_padding" for word in words]


def test_a_slower_mask_is_called_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    taking = {"key_padding": 1.0, "per_sample": 1.3, "shared": 1.0}
    monkeypatch.setattr(Runner, "work", lambda self, kind: (taking[kind] * rng.lognormal(0, 0.02), 1000))
    lines = printed([measure_all([config_of("causal_lm")], [(3, 16)], 12, seed) for seed in range(3)])
    ends = ("", "not told apart", "slower", "not told apart from A/A")
    assert all(line.endswith(end) for line, end in zip(lines, ends, strict=True)), lines


def test_a_mask_that_hides_nothing_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def hiding_nothing(kind: str, *others: Any) -> torch.Tensor:
        mask = masks.attention_mask(kind, *others)
        return mask if kind == "key_padding" else torch.ones_like(mask)

    monkeypatch.setattr(collate, "attention_mask", hiding_nothing)
    rows, _ = measure(config_of("causal_lm"), 3, 16, rounds=3)
    assert min(row["apart"] for row in rows[1:]) > 1e-3


@pytest.mark.slow
def test_a_model_that_refuses_a_kind_has_a_row_that_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    MistralConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=64, max_position_embeddings=90, sliding_window=8,
    ).save_pretrained(tmp_path)  # fmt: skip
    file = tmp_path / "run.toml"
    file.write_text(f'steps = 1\n[model]\ntask = "causal_lm"\nname = "{tmp_path}"\n[executor]\ndevice = "cpu"\n')
    assert main(["shape=3x16", str(file), "--rounds", "1", "model.dropout=0", "--launches", "1"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("refused") == 2
    assert "some of its layers reach 8 tokens far" in printed
    assert AA in printed


def test_without_a_config_both_tasks() -> None:
    assert [config.model.task for config in configs(["model.dropout=0"])] == ["classification", "causal_lm"]
