"""The kit for a GPU: parts that fail leave the others to go on; the whole of it runs in `make checks`."""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from synthetic import write_run

from ddpsched.config import parse
from experiments.gpu import __main__ as kit
from experiments.gpu import measure
from experiments.gpu.arm_tables import facts, steps_of, with_steps
from experiments.gpu.measure import STEPS, Stopped, followed, in_turn
from experiments.gpu.parts import LIMITS, parts
from experiments.gpu.processes import run_part
from experiments.gpu.settings import compiled_arms, graph_arms, speed_arms
from experiments.gpu.sizes import FULL, SMOKE
from report import on_gpu


def test_parts_have_limits_and_come_in_the_order_of_their_worth() -> None:
    names = parts(FULL)
    assert names[:2] == ["device", "attention"]
    assert {name.split()[0] for name in names} == LIMITS.keys()
    assert sum(LIMITS[name.split()[0]] for name in names) <= 540
    assert {(4, 32), (4, 2048), (8, 32), (8, 2048)} == {(g, b) for model, g, b in FULL.speed if model == "distilbert"}


def test_every_arm_has_a_config(tmp_path: Path) -> None:
    arms = speed_arms("distilbert", 4, 2048, FULL, tmp_path, tmp_path / "calibration.json")
    assert next(iter(arms)) == "static"
    assert arms["auto"].policy.kind == "auto"
    assert len({config.name for config in arms.values()}) == len(arms) == 8
    assert arms["packed by SDPA"].model.packed_attention == "sdpa"
    assert list(compiled_arms(FULL, tmp_path))[2:] == ["static, dynamic", "static, N = 2", "balanced, N = 2"]
    (eager, graphs) = list(graph_arms(FULL, tmp_path).values())[2:]
    assert (eager.compile.kind, graphs.compile.records_graphs) == ("eager", True)
    longs = speed_arms("gpt2", 2, 8, SMOKE, tmp_path, tmp_path / "calibration.json")
    assert longs["static"].model.task == "causal_lm"
    assert Path(longs["static"].model.name, "config.json").exists()
    words = [len(json.loads(line)["text"].split()) for line in (tmp_path / "texts.jsonl").open()]
    assert 8 <= min(words) < SMOKE.longest // 4 < max(words) <= SMOKE.longest - 2


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, dict[str, Any]]:
    """Return what each part finds in place of its process, to be filled by the test; parts without an entry fail."""
    found: dict[str, dict[str, Any]] = {"device": {"gpu": {"name": "GPU Z9"}}}

    def run_part(part: str, work: Path, smoke: bool, limit: float, log: Path) -> dict[str, Any]:
        found.setdefault("ran", {})[part] = limit
        if part.startswith("speed"):
            pd.DataFrame({"arm": [part], "step": [0]}).to_parquet(work / STEPS)
        return dict(found.get(part, {"failed": "exit code 1: no such model"}))

    monkeypatch.setattr(kit, "parts", lambda size: ["device", "speed a 2 8", "speed b 2 8", "compiled"])
    monkeypatch.setattr(kit, "run_part", run_part)
    monkeypatch.setattr(kit, "WORK", tmp_path / "work")
    return found


def call(output: Path, **changed: Any) -> int:
    """Run the kit; return its exit code."""
    with pytest.raises(kit.typer.Exit) as ended:
        kit.main(output, **{"budget": 540, "smoke": False, "force": False, **changed})
    return ended.value.exit_code


def test_a_part_that_fails_leaves_the_others(device: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    device |= {"speed a 2 8": {"arms": []}, "compiled": {"arms": []}}
    assert call(tmp_path) == 1
    measured = json.loads((tmp_path / "gpu.json").read_text())
    assert list(device["ran"]) == ["device", "speed a 2 8", "speed b 2 8", "compiled"]
    assert measured["parts"]["speed b 2 8"]["failed"] == "exit code 1: no such model"
    device |= {"device": {"gpu": None}, "ran": {}}
    assert call(tmp_path) == 1
    assert list(device["ran"]) == ["device"]  # without a GPU nothing else is tried
    assert json.loads((tmp_path / "gpu.json").read_text()) == measured
    assert not (tmp_path / "work").exists()


def test_the_next_call_does_what_is_left(device: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    device |= {"speed a 2 8": {"arms": [1]}, "speed b 2 8": {"cut_off_s": 9, "arms": [2]}}
    assert call(tmp_path) == 1
    device |= {"ran": {}, "compiled": {"arms": [3]}}
    del device["speed b 2 8"]
    assert call(tmp_path) == 1
    assert list(device["ran"]) == ["device", "speed b 2 8", "compiled"]
    parts_of = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    assert parts_of["speed b 2 8"]["arms"] == [2]  # what was cut off is more than what failed
    assert set(pd.read_parquet(tmp_path / STEPS)["part"]) == {"speed a 2 8", "speed b 2 8"}
    device |= {"ran": {}, "speed b 2 8": {"arms": [4]}}
    assert call(tmp_path) == 0
    assert list(device["ran"]) == ["device", "speed b 2 8"]
    device |= {"ran": {}, "device": {"gpu": {"name": "another"}}}
    assert call(tmp_path) == 0
    assert len(device["ran"]) == 4
    device["ran"] = {}
    assert call(tmp_path, force=True) == 0
    assert len(device["ran"]) == 4
    device["ran"] = {}
    assert call(tmp_path, smoke=True) == 0
    assert len(device["ran"]) == 4


def test_a_budget_ends_parts(device: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    call(tmp_path, budget=20)
    assert device["ran"]["speed a 2 8"] <= 20
    device["ran"] = {}
    call(tmp_path / "later", budget=1)
    assert list(device["ran"]) == ["device"]
    found = json.loads((tmp_path / "later" / "gpu.json").read_text())
    assert found["parts"]["speed b 2 8"]["failed"] == "the budget of 1 s was used up"


def test_a_part_that_takes_too_long_keeps_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arms = {
        name: parse(
            {
                "name": name, "study": "gpu", "outputs": str(tmp_path), "steps": 10000, "global_batch": 8,
                "world_size": 2, "data": {"size": 64}, "train": {"save_model": False}, "executor": {"device": "cpu"},
            }
        )
        for name in ("static", "balanced")
    }  # fmt: skip
    before = signal.getsignal(signal.SIGTERM)
    records = [tmp_path / "gpu" / name / "records-rank0.jsonl" for name in arms]

    def stop_under_way() -> None:
        waiting = threading.Event()
        while not all(path.exists() and path.stat().st_size > 10_000 for path in records):
            waiting.wait(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop_under_way, daemon=True).start()
    found = in_turn(arms, tmp_path)
    assert "cut_off_s" in found
    assert [arm["arm"] for arm in found["arms"]] == ["static", "balanced"]
    steps = pd.read_parquet(tmp_path / STEPS).groupby("arm")["step"].nunique()
    assert abs(steps["static"] - steps["balanced"]) <= 1
    assert 1 < steps["static"] < 10000
    assert signal.getsignal(signal.SIGTERM) is before


def test_tests_that_take_too_long_keep_those_that_ended(tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    waits = "from time import sleep\ndef test_one(): pass\ndef test_two(): assert 0\ndef test_three(): sleep({})\n"
    words = [sys.executable, "-u", "-m", "pytest", "-v", "-p", "no:cacheprovider", "-c", os.devnull, str(file)]
    file.write_text(waits.format(0))
    ended = followed(words)
    assert (ended["exit_code"], ended["last_line"][:18]) == (1, "1 failed, 2 passed")
    assert [name.partition("::")[2] for name in ended["failed_tests"]] == ["test_two"]
    file.write_text(waits.format(600))
    threading.Timer(6, os.kill, (os.getpid(), signal.SIGTERM)).start()
    cut_off = followed(words)
    assert cut_off["last_line"] == "1 passed before time was up"
    assert cut_off["cut_off_s"] == 6
    assert [name.partition("::")[2] for name in cut_off["failed_tests"]] == ["test_two"]


def test_an_arm_without_a_step_shows_none_of_an_earlier_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(configs: list[Any], overwrite: bool) -> dict[str, str]:
        raise Stopped("it was cut off after 9 s")

    write_run(tmp_path / "gpu", "static", name="static")
    monkeypatch.setattr(measure, "run_interleaved", stopped)
    arms = {"static": parse({"name": "static", "study": "gpu", "outputs": str(tmp_path), "steps": 60})}
    found = in_turn(arms, tmp_path)
    assert found["arms"][0]["failed"] == "it was cut off after 9 s"
    assert pd.read_parquet(tmp_path / STEPS).empty


def test_arms_stand_alone_where_static_failed(tmp_path: Path) -> None:
    """Static may be out of memory at a large batch; what the others took is kept, without a ratio."""
    for policy in ("static", "balanced"):
        write_run(tmp_path / "gpu", policy, name=policy)
    shared = {"study": "gpu", "outputs": str(tmp_path), "steps": 60, "global_batch": 8, "world_size": 2}
    arms = {name: parse({"name": name, **shared}) for name in ("static", "balanced")}
    for each in ("static", "balanced"):
        file = arms[each].run_dir / "records.parquet"
        pd.read_parquet(file).assign(recompiled=None).to_parquet(file)
    steps = steps_of(arms)
    static, balanced = with_steps(facts(arms, {}), steps)
    assert static["throughput"] == 1
    assert balanced["low"] <= balanced["throughput"] <= balanced["high"]
    took = steps[steps["arm"] == "balanced"].groupby("step")["step_s"].max().iloc[9:]  # 15 % of 60 are the warm-up
    assert (balanced["steps"], balanced["step_s"]) == (51, took.median())
    rows = facts(arms, {"static": "out of memory"})
    failed, alone = with_steps(rows, steps[steps["arm"] != "static"])
    assert (failed["arm"], failed["failed"], failed["compiling_s"]) == ("static", "out of memory", None)
    assert alone["tokens_per_s"] == balanced["tokens_per_s"]
    assert (alone["throughput"], alone["low"], alone["high"]) == (None, None, None)
    part = {"arms": [failed, alone]}
    assert on_gpu.judged(part) == ""
    assert on_gpu.cells(alone)[3] == "–"
    one = with_steps(rows, steps[steps["step"] == 0])
    assert [row["failed"] for row in one] == ["out of memory", "it has no step after its warm-up"]


def test_a_process_that_ends_badly_says_why(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    found = run_part("speed distilbert", tmp_path, True, 60.0, log)
    assert "exit code 1" in found["failed"]
    assert "IndexError" in found["failed"]
    assert "took more than" in run_part("device", tmp_path, True, 0.01, log)["failed"]
