"""A wrong config is refused with a message about its fault."""

from pathlib import Path
from typing import Any

import pytest

from ddpsched.config import RunConfig, apply_overrides, dump, load, parse
from ddpsched.errors import ConfigError


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"polcy": {}}, r"unknown key polcy; did you mean policy\?"),
        ({"policy": {"kindd": "minmax"}}, r"unknown key policy.kindd; did you mean policy.kind\?"),
        ({"prefetch": 16}, r"unknown key prefetch; did you mean policy.prefetch\?"),
        ({"policy": {"kind": "maxmin"}}, "policy.kind = 'maxmin': .*'static', 'minmax', 'balanced'"),
        ({"seed": "1"}, "seed = '1': .*integer"),
        ({"global_batch": True}, "global_batch = True"),
        ({"global_batch": 3}, "global_batch = 3 is smaller than world_size = 4"),
        ({"policy": {"kind": "minmax", "prefetch": 4}}, r"4 \* 4 = 16 is smaller than global_batch = 32.*at least 8"),
        ({"epochs": 1}, "steps = 5, epochs = 1: give exactly one"),
        (
            {"steps": None, "epochs": 3, "policy": {"kind": "pool", "infinite_loop": False}},
            "infinite_loop = false ends after one epoch, but epochs = 3",
        ),
        ({"train": {"learning_rate": 0.0}}, "train.learning_rate = 0.0: .*greater than 0"),
        ({"train": {"learning_rate": float("nan")}}, "train.learning_rate = nan"),
        ({"name": "../escape"}, "name = '../escape'"),
        ({"policy": {"kind": "balanced"}, "data": {"lengths": "online"}}, "needs every length on every rank"),
        ({"cost": {"kind": "affine_quadratic"}}, "affine_quadratic needs path"),
        ({"cost": {"beta": 1.0}}, "belong to kind = 'affine_quadratic'"),
        ({"memory": {"budget_bytes": 5}}, "set probe = true"),
        ({"memory": {"path": "x.json", "probe": True}}, "give one of the two"),
        ({"cost": {"kind": "calibrated"}}, "calibrated needs path"),
        ({"policy": {"kind": "static", "lookahead": 2}}, "lookahead belongs to"),
        ({"policy": {"kind": "minmax", "max_microbatches": 2}}, "max_microbatches belongs to"),
        ({"policy": {"kind": "peer"}}, "policy.peer is missing; policy.kind = 'peer' needs it"),
        ({"policy": {"kind": "static", "peer": "verl"}}, "peer belongs to kind = 'peer', not 'static'"),
        ({"executor": {"slowness": [2.0]}}, "slowness names 1 ranks"),
    ],
)
def test_bad_values(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse({"steps": 5, **values})


def test_every_fault_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse({"steps": 5, "seed": -1, "nme": "x"})
    assert len(str(caught.value).splitlines()) == 2


def test_overrides(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('steps = 5\n[policy]\nkind = "static"\n')
    config = load(path, ["policy.kind=minmax", "train.learning_rate=5e-5", "data.path=a b.tsv", "memory.probe=true"])
    assert (config.policy.kind, config.train.learning_rate, config.data.path) == ("minmax", 5e-5, "a b.tsv")
    assert config.memory.probe is True
    for words, message in (
        (["steps"], "key=value"),
        (["steps.x=1"], "steps is a value"),
        (["stepz=1"], "did you mean"),
    ):
        with pytest.raises(ConfigError, match=message):
            load(path, words)
    assert apply_overrides({"a": {"b": 1}}, ["a.c=2"]) == {"a": {"b": 1, "c": 2}}


def test_missing_and_malformed_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: No such file"):
        load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("steps = ")
    with pytest.raises(ConfigError, match=r"bad\.toml: not valid TOML"):
        load(tmp_path / "bad.toml")


def test_the_resolved_config_reads_back(tmp_path: Path) -> None:
    config = parse({"epochs": 2, "policy": {"kind": "balanced"}, "data": {"path": "x.tsv"}})
    (tmp_path / "config.toml").write_text(dump(config))
    assert load(tmp_path / "config.toml") == config
    with pytest.raises(Exception, match="frozen"):
        config.seed = 3
    assert isinstance(config, RunConfig)


def test_a_thousand_unknown_keys_are_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking for the nearest known key of each would take seconds."""
    searched = []
    monkeypatch.setattr("difflib.get_close_matches", lambda word, *_, **__: searched.append(word) or [])
    with pytest.raises(ConfigError, match="and 991 more"):
        parse({f"key{number}": 1 for number in range(1000)} | {"steps": "x"})
    assert len(searched) <= 10


def test_a_file_that_begins_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("steps = 3\n", encoding="utf-8-sig")
    assert load(tmp_path / "run.toml").steps == 3
