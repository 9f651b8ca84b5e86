"""The kit for a GPU: parts that fail leave the others to go on; the whole of it runs in `make checks`."""

import json
from pathlib import Path

import pandas as pd
import pytest
from synthetic import write_run

from ddpsched.config import parse
from experiments.gpu import __main__ as kit
from experiments.gpu.arm_tables import rows
from experiments.gpu.parts import LIMITS, parts
from experiments.gpu.settings import compiled_arms, speed_arms
from experiments.gpu.sizes import FULL, SMOKE
from report import on_gpu


def test_parts_have_limits_and_come_in_the_order_of_their_worth() -> None:
    names = parts(FULL)
    assert names[:2] == ["device", "tests"]
    assert {name.split()[0] for name in names} == LIMITS.keys()
    assert {(4, 32), (4, 2048), (8, 32), (8, 2048)} == {(g, b) for model, g, b in FULL.speed if model == "distilbert"}


def test_every_arm_has_a_config(tmp_path: Path) -> None:
    arms = speed_arms("distilbert", 4, 2048, FULL, tmp_path, tmp_path / "calibration.json")
    assert next(iter(arms)) == "static"
    assert arms["auto"].policy.kind == "auto"
    assert len({config.name for config in arms.values()}) == len(arms) == 9
    assert arms["packed by SDPA"].model.packed_attention == "sdpa"
    assert list(compiled_arms(FULL, tmp_path))[-1] == "balanced, N = 4, CUDA graphs"
    longs = speed_arms("gpt2", 2, 8, SMOKE, tmp_path, tmp_path / "calibration.json")
    assert longs["static"].model.task == "causal_lm"
    assert Path(longs["static"].model.name, "config.json").exists()
    words = [len(json.loads(line)["text"].split()) for line in (tmp_path / "texts.jsonl").open()]
    assert 8 <= min(words) < SMOKE.longest // 4 < max(words) <= SMOKE.longest - 2


def test_a_part_that_fails_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kit, "parts", lambda size: ["device", "speed nothing 2 8", "compiled"])
    ran = []

    def run_part(part: str, work: Path, smoke: bool, limit: float, log: Path) -> dict[str, object]:
        ran.append(part)
        return {"failed": "exit code 1: no such model"} if part.startswith("speed") else {"gpu": None}

    monkeypatch.setattr(kit, "run_part", run_part)
    with pytest.raises(kit.typer.Exit) as ended:
        kit.main(tmp_path, budget=540, smoke=True)
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert ended.value.exit_code == 1
    assert ran == ["device", "speed nothing 2 8", "compiled"]
    assert found["parts"]["speed nothing 2 8"]["failed"] == "exit code 1: no such model"
    with pytest.raises(kit.typer.Exit):
        kit.main(tmp_path, budget=540, smoke=False)
    assert ran[3:] == ["device"]  # without a GPU nothing else is tried


def test_arms_stand_alone_where_static_failed(tmp_path: Path) -> None:
    """Static may be out of memory at a large batch; what the others took is kept, without a ratio."""
    for policy in ("static", "balanced"):
        write_run(tmp_path / "gpu", policy, name=policy)
    arms = {
        name: parse(
            {"name": name, "study": "gpu", "outputs": str(tmp_path), "steps": 60, "global_batch": 8, "world_size": 2}
        )
        for name in ("static", "balanced")
    }
    for each in ("static", "balanced"):
        file = arms[each].run_dir / "records.parquet"
        pd.read_parquet(file).assign(recompiled=None).to_parquet(file)
    static, balanced = rows(arms, {})
    assert static["throughput"] == 1
    assert balanced["throughput"] > 0
    failed, alone = rows(arms, {"static": "out of memory"})
    assert failed == {"arm": "static", "failed": "out of memory"}
    assert alone["tokens_per_s"] == balanced["tokens_per_s"]
    assert (alone["throughput"], alone["low"], alone["high"]) == (None, None, None)
    part = {"arms": [failed, alone | {"chosen": None}]}
    assert on_gpu.judged(part) == ""
    assert on_gpu.cells(alone)[1] == "–"


def test_a_process_that_ends_badly_says_why(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    found = kit.run_part("speed distilbert", tmp_path, True, 60.0, log)
    assert "exit code 1" in found["failed"]
    assert "IndexError" in found["failed"]
    assert "took more than" in kit.run_part("device", tmp_path, True, 0.01, log)["failed"]
