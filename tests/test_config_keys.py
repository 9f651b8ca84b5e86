"""``ddpsched config``: every key of the models, with a sentence, and a file that runs as printed."""

import json
import re
from pathlib import Path

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from ddpsched.cli import app
from ddpsched.config import RunConfig, load, parse
from ddpsched.config.keys import Key, as_toml, chosen, keys
from ddpsched.decode import decode_toml
from ddpsched.planning.policies import POLICIES

EVERY = list(keys())


def test_every_key_of_the_models_is_there_once() -> None:
    expected = []
    for name, field in RunConfig.model_fields.items():
        if name != "policy":
            inner = type(field.default).model_fields if isinstance(field.default, BaseModel) else None
            expected += [(name, key, "") for key in inner] if inner else [("", name, "")]
    expected += [("policy", key, kind) for kind, policy in POLICIES.items() for key in policy.model_fields]
    assert sorted((key.table, key.name, key.policy) for key in EVERY) == sorted(expected)


@pytest.mark.parametrize("key", EVERY, ids=lambda key: f"{key.policy}{key.table}.{key.name}")
def test_each_has_a_sentence_and_a_type(key: Key) -> None:
    assert re.fullmatch(r"\S.{3,120}\.", key.sentence)
    assert re.fullmatch(r'(Text|Integer|Number|True or false|List|").*\.', key.type)


def test_what_is_printed_is_the_default_config() -> None:
    values = decode_toml(as_toml(EVERY))
    assert parse({**values, "steps": 1}) == parse({"steps": 1})


@pytest.mark.parametrize("kind", ["balanced", "packed", "auto"])
def test_a_word_takes_another_policy_of_the_printed_config(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(CliRunner().invoke(app, ["config"]).stdout)
    assert load(file, [f"policy.kind={kind}", "steps=10"]).policy.kind == kind


def test_the_others_are_right_once_they_are_uncommented() -> None:
    """Each policy is a table that its model takes; one key needs a value first."""
    blocks = re.split(r"^(?:# )?\[policy\]", as_toml(EVERY), flags=re.MULTILINE)[1:]
    assert len(blocks) == len(POLICIES)
    for block in blocks:
        lines = [line.removeprefix("# ") for line in block.splitlines() if re.match(r"(# )?\w+ = .", line)]
        kind = decode_toml("\n".join(lines))["kind"]
        assert set(decode_toml("\n".join(lines))) <= set(POLICIES[kind].model_fields)


def test_tables_and_keys_are_chosen() -> None:
    done = CliRunner().invoke(app, ["config", "train.keep", "memory"])
    assert done.stdout.splitlines() == [
        "[train]", "# The newest checkpoints that stay. Integer from 1 to 2147483647.", "keep = 2", "",
        "[memory]", "# A calibration with a memory model. Text.", "# path =",
        "# Instead of path: measure how many samples of data.max_length fit. True or false.", "probe = false",
        "# The memory of each rank; must be given on a CPU; by default 90 % of a CUDA device. Integer from 1 to",
        "# 1152921504606846976.", "# budget_bytes =",
    ]  # fmt: skip
    assert {key.policy for key in chosen(["policy"])} == set(POLICIES)


def test_json() -> None:
    done = CliRunner().invoke(app, ["config", "seed", "--json"])
    assert json.loads(done.stdout) == [
        {
            "table": "", "name": "seed", "default": 0, "type": "Integer from 0 to 4294967295.",
            "sentence": "Decides the order, random weights and dropout.", "policy": "",
        }
    ]  # fmt: skip


@pytest.mark.parametrize(("word", "remedy"), [("trian", "did you mean train"), ("xyzzy", "tables are compile, cost")])
def test_an_unknown_word(word: str, remedy: str) -> None:
    done = CliRunner().invoke(app, ["config", word])
    assert done.exit_code == 1
    assert f"config has no table or key '{word}'; {remedy}" in done.stderr
