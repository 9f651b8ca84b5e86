"""`ddpsched plan --law`: lengths of a law in place of a file."""

import json
from pathlib import Path

import numpy as np
import pytest
from plan_commands import SIZES
from typer.testing import CliRunner, Result

import ddpsched
from ddpsched.cli import app
from ddpsched.data.laws.length_laws import length_laws

FEW = ["--samples", "512", "--policy", "static", "--seed", "3"]


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["plan", *words, *SIZES])


def test_a_law_is_planned_and_named_with_its_source() -> None:
    for name, law in length_laws().items():
        first, title = call("--law", name, *FEW).stdout.splitlines()[:2]
        assert first == f"law {name}, {law.kind}: {law.source}; {law.caveat}"
        assert title.startswith(f"law {name}, {law.kind}: 512 samples, mean ")
        assert title.rstrip().endswith("seed 3")


def test_a_law_is_planned_as_its_lengths_in_python() -> None:
    printed = json.loads(call("--law", "chat", *FEW, "--json").stdout)
    lengths = ddpsched.law_lengths("chat", 512, seed=3)
    table = ddpsched.plan(lengths, world_size=4, global_batch=32, policy="static", seed=3)
    assert printed["rows"][0]["yardstick"] == table.to_frame().yardstick["static"]
    assert printed["law"] == str(length_laws()["chat"])
    assert printed["title"].partition(":")[2] == table.title.partition(":")[2]


def test_the_same_seed_plans_the_same_and_another_another() -> None:
    once, again = (call("--law", "code", *FEW).stdout.splitlines()[1] for _ in range(2))
    other = call("--law", "code", *FEW[:-1], "4").stdout.splitlines()[1]
    assert once == again
    assert once.partition("mean")[2].split()[0] != other.partition("mean")[2].split()[0]


@pytest.mark.parametrize("option", ["--cut", "--max-length"])
def test_lengths_are_cut_and_counted(tmp_path: Path, option: str) -> None:
    lengths = ddpsched.law_lengths("encyclopedia", 512, seed=3)
    np.save(tmp_path / "lengths.npy", lengths)
    words = [option, "900", "--policy", "static", "--seed", "3"]
    of_law = call("--law", "encyclopedia", "--samples", "512", *words).stdout.splitlines()[1:]
    of_file = call(str(tmp_path / "lengths.npy"), *words).stdout.splitlines()
    cut = f" ({(lengths > 900).sum()} cut to 900 tokens): 512 samples, mean {lengths.clip(max=900).mean():.1f}, longest"
    assert of_law[0].startswith(f"law encyclopedia, measured{cut}")
    assert of_file[0].startswith(f"lengths.npy{cut}")


def test_the_size_by_default() -> None:
    title = call("--law", "code", "--policy", "static").stdout.splitlines()[1]
    assert title.startswith("law code, measured: 65,536 samples")


def test_the_help_names_the_laws_and_what_they_are_not() -> None:
    text = " ".join(CliRunner().invoke(app, ["plan", "--help"]).stdout.split())
    for name in length_laws():
        assert f"{name} (" in text or f"| {name} |" in text
    assert "inference requests, not training samples" in text
    assert "rollouts (synthetic)" in text
