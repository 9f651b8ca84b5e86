"""The benchmark of compiled models: its arms, what it freezes, and a launch of a few steps."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from analysis.compiled import AGAIN, DYNAMIC, EAGER, STATIC
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


def test_each_launch_is_frozen_as_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def launched(_: Any, given: argparse.Namespace, policy: str, launches: int) -> list[dict[str, Any]]:
        if policy == "broken":
            raise RuntimeError("launch 0: its process ended with exit code 1")
        about = {"backend": given.backend, "num_steps": given.steps, "start_s": 1.0}
        return [{"policy": policy, **about, "rows": []}] * launches

    monkeypatch.setattr(compiled, "launched", launched)
    monkeypatch.setattr(compiled, "FROZEN", tmp_path / "frozen")
    with pytest.raises(RuntimeError, match="exit code 1"):
        main(["DIR", "--freeze", "--policies", "static", "balanced", "broken", "auto"])
    assert main(["DIR", "--freeze", "--policies", "auto", "static", "--steps", "7"]) == 0
    frozen = read_json(tmp_path / "frozen" / "tiny.json")
    found = [(each["policy"], each["num_steps"]) for each in frozen["launches"]]
    assert found == [("static", 7), ("balanced", 600), ("auto", 7)]
    assert "tiny, auto, inductor, 7 steps, the compiler's start 1.0 s" in capsys.readouterr().out
    assert freeze("org/other", frozen["launches"][0], tmp_path / "frozen").name == "other.json"


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
    eager, one, two = launch["rows"]
    assert (launch["policy"], launch["num_steps"], launch["backend"]) == ("balanced", 6, "aot_eager")
    assert eager["to_eager"]["ratio"] == 1.0
    assert one["failed"] is None
    assert one["num_programs"] == 1
    assert (two["num_programs"], two["num_recompiled"]) == (2, 0)
    assert two["compile_s"] > launch["start_s"] > 0
    assert two["computed_per_real"] > eager["computed_per_real"]
    assert str(tmp_path) not in str(launch)
    assert "| balanced | N = 1 |" in markdown("tiny", launch)
