"""The start-up probe against the memory that it measures, and the caps it gives to plans."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from ddpsched.config import RunConfig, parse
from ddpsched.errors import ConfigError, InfeasibleError
from ddpsched.run_loop import run
from ddpsched.training import calibrate
from ddpsched.training.learner import Learner

MIB = 2**20


def config_of(outputs: Path, budget: int | None, **values: Any) -> RunConfig:
    memory = {"probe": True} if budget is None else {"probe": True, "budget_bytes": budget}
    table = {"steps": 2, "global_batch": 64, "world_size": 4, "outputs": str(outputs), "memory": memory}
    return parse({**table, "data": {"size": 200, "max_length": 64}, "policy": {"prefetch": 32}, **values})


@pytest.fixture
def learner() -> Learner:
    config = config_of(Path(), 10**12)
    return Learner(config, config.load_samples(), torch.device("cpu"))


class Ruler:
    """A device whose peak memory is 100 MiB and 3 MiB a sample; from 40 samples on it runs out of memory."""

    def __init__(self) -> None:
        self.tried: list[int] = []

    def __call__(self, learner: Learner, count: int, length: int) -> int | None:
        self.tried.append(count)
        return None if count >= 40 else (100 + 3 * count) * MIB


@pytest.mark.parametrize(("free", "expected"), [(100 + 3 * 20, 20), (100 + 3 * 7 + 2, 7), (100 + 3, 1), (1000, 32)])
def test_the_line_tells_where_the_budget_ends(
    learner: Learner, monkeypatch: pytest.MonkeyPatch, free: int, expected: int
) -> None:
    ruler = Ruler()
    monkeypatch.setattr(calibrate, "_peak", ruler)
    found = calibrate.max_count(learner, config_of(Path(), free * MIB))
    assert found == expected
    assert ruler.tried == sorted(ruler.tried)


def test_too_little_for_one_sample(learner: Learner) -> None:
    with pytest.raises(InfeasibleError, match=r"one sample of 64 tokens needs [\d,]+ bytes, the budget is 1,048,576"):
        calibrate.max_count(learner, config_of(Path(), MIB))


def test_a_cpu_needs_a_budget(learner: Learner) -> None:
    with pytest.raises(ConfigError, match=r"memory.budget_bytes"):
        calibrate.max_count(learner, config_of(Path(), None))


def test_real_memory_grows_with_the_count_and_the_gradient_is_left_clean(learner: Learner) -> None:
    small, large = calibrate._peak(learner, 1, 64), calibrate._peak(learner, 512, 64)
    assert small is not None
    assert large is not None
    assert large > small + 20 * MIB
    calibrate.max_count(learner, config_of(Path(), 10**12))
    assert all(p.grad is None for p in learner.model.parameters())


@pytest.mark.parametrize("policy", ["minmax", "balanced"])
def test_what_is_probed_caps_the_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    monkeypatch.setattr("ddpsched.training.calibrate.max_count", lambda learner, config: 17)
    config = config_of(tmp_path, 10**12, policy={"kind": policy, **({"prefetch": 32} if policy == "minmax" else {})})
    rows = pd.read_parquet(run(config) / "records.parquet")
    assert rows["num_samples"].max() == 17
    monkeypatch.setattr("ddpsched.training.calibrate.max_count", lambda learner, config: 15)
    with pytest.raises(InfeasibleError, match="64"):
        run(config, overwrite=True)


def test_out_of_memory_ends_the_probe(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(self: Any, batch: Any) -> Any:
        if len(batch) > 4:
            raise torch.OutOfMemoryError("planted")
        return batch.input_ids.sum() * 0.0 + sum(p.sum() for p in learner.model.parameters()) * 0.0

    monkeypatch.setattr("ddpsched.training.learner.Learner.loss_sum", no_memory)
    assert calibrate.max_count(learner, config_of(Path(), 10**15)) == 4
