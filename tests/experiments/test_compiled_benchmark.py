"""The benchmark of compiled models: its arms, what it freezes, and a launch of a few steps."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from analysis.compiled import AGAIN, DYNAMIC, EAGER, STATIC, joined
from ddpsched.records import read_json
from experiments.benchmarks import compiled
from experiments.benchmarks.compiled import arms, freeze, main, markdown, measure


def test_arms_of_a_policy() -> None:
    assert [(arm.policy, arm.kind, arm.shapes) for arm in arms("balanced", [1, 4], alone=False)] == [
        ("static", EAGER, None), ("static", AGAIN, None), ("balanced", EAGER, None), ("balanced", DYNAMIC, None),
        ("balanced", STATIC, 1), ("balanced", STATIC, 4),
    ]  # fmt: skip
    assert [arm.name for arm in arms("static", [4], False)] == [
        "static eager", "static eager again", "static dynamic", "static, N = 4"
    ]  # fmt: skip
    assert [arm.name for arm in arms("static", [4], alone=True)] == ["static eager", "static, N = 4"]


def test_each_policy_is_frozen_as_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def launched(_: Any, given: argparse.Namespace, policy: str, launches: int) -> list[dict[str, Any]]:
        if policy == "broken":
            raise RuntimeError("launch 0: its process ended with exit code 1")
        about = {"backend": given.backend, "num_steps": given.steps, "start_s": 1.0}
        blank = dict.fromkeys(("shapes", "failed", "chosen", "num_programs", "compile_s"))
        return [
            {"policy": policy, **about, "rows": [
                blank | {"policy": policy, "kind": EAGER, "num_recompiled": 0, "computed_per_real": 1.0,
                         "launches_s": [[1.0 + launch] * 9]}
            ]}
            for launch in range(launches)
        ]  # fmt: skip

    monkeypatch.setattr(compiled, "launched", launched)
    monkeypatch.setattr(compiled, "FROZEN", tmp_path / "frozen")
    with pytest.raises(RuntimeError, match="exit code 1"):
        main(["DIR", "--freeze", "--policies", "static", "balanced", "broken", "auto"])
    assert main(["DIR", "--freeze", "--policies", "auto", "static", "--steps", "7", "--launches", "2"]) == 0
    frozen = read_json(tmp_path / "frozen" / "tiny.json")
    found = [(each["policy"], each["num_steps"], each["num_launches"]) for each in frozen["policies"]]
    assert found == [("static", 7, 2), ("balanced", 150, 5), ("auto", 7, 2)]
    assert frozen["policies"][0]["rows"][0]["launches_s"] == [[1.0] * 9, [2.0] * 9]
    assert "tiny, auto, inductor, launches: 2 of 7 steps, the compiler's start 1.0 s" in capsys.readouterr().out
    assert freeze("org/other", frozen["policies"][0], tmp_path / "frozen").name == "other.json"


@pytest.mark.slow
def test_a_launch_on_real_texts(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TORCHINDUCTOR_CACHE_DIR", "DDPSCHED_CACHE"):  # which it sets, for this process
        monkeypatch.setenv(name, str(tmp_path))
    few = tmp_path / "few"
    (few / "sst2").mkdir(parents=True)
    lines = (data_dir / "sst2" / "train.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
    (few / "sst2" / "train.tsv").write_text("".join(lines[:400]), encoding="utf-8")
    (few / "bert-uncased").symlink_to((data_dir / "bert-uncased").resolve())
    given = argparse.Namespace(
        folder=few, shapes=[1, 2], steps=6, model="tiny", backend="aot_eager", world_size=2, alone=True,
        output=tmp_path / "outputs",
    )  # fmt: skip
    launch = measure(given, "balanced")
    kept = given.output / "cache" / "balanced" / "kept"
    kept.write_text("what a first launch has left")
    later = measure(given, "balanced", seed=1)
    eager, one, two = launch["rows"]
    assert (launch["policy"], launch["num_steps"], launch["backend"]) == ("balanced", 6, "aot_eager")
    assert [len(steps) for steps in eager["launches_s"]] == [6]
    assert one["failed"] is None
    assert one["num_programs"] == 1
    assert (two["num_programs"], two["num_recompiled"]) == (2, 0)
    assert two["compile_s"] > launch["start_s"] > 0
    assert two["computed_per_real"] > eager["computed_per_real"]
    assert str(tmp_path) not in str(launch)
    assert kept.exists()  # a later launch goes on with the cache
    assert [row["num_programs"] for row in later["rows"]] == [0, 1, 2]
    both = {**launch, "num_launches": 2, "rows": joined([launch["rows"], later["rows"]])}
    assert "| balanced | N = 1 |" in markdown("tiny", both)
