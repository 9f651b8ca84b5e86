"""The benchmark of checkpoints: in each block of the arm that writes them, one is written."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from ddpsched.recovery.keeper import Keeper
from ddpsched.training.state import Snapshot
from experiments.benchmarks import checkpointing
from experiments.reliability import checkpoint_cost, findings


@pytest.mark.parametrize(("every", "turn", "checkpoints"), [(2, 2, 5), (4, 2, 3)])
def test_one_checkpoint_every_so_many_steps(
    monkeypatch: pytest.MonkeyPatch, every: int, turn: int, checkpoints: int
) -> None:
    tables = {"model": {"name": "tiny"}, "data": {"size": 60}, "global_batch": 4}
    monkeypatch.setattr(checkpointing, "MODELS", {"tiny": checkpointing.Model(every, turn, tables)})
    for owner, name in ((Snapshot, "take"), (Keeper, "_write")):  # so that they are put back
        monkeypatch.setattr(owner, name, getattr(owner, name))
    spent = checkpointing._timed()
    monkeypatch.setattr(checkpointing, "_timed", lambda: spent)
    seconds, parts = checkpointing.measure("tiny", 1, 4, 0)
    assert {arm: len(each) for arm, each in seconds.items()} == {"without": 4, "A/A": 4, "with checkpoints": 4}
    assert all((each > 0).all() for each in seconds.values())
    assert len(spent["copy"]) == checkpoints
    assert np.isfinite(list(parts.values())).all()


@pytest.mark.parametrize(("slower", "code"), [(1.02, 0), (1.06, 1)])
def test_the_finding_holds_up_to_three_in_a_hundred(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, slower: float, code: int
) -> None:
    """The times are such that checkpoints cost so much."""

    def launched(*_: Any, launches: int) -> list[Any]:
        rng = np.random.default_rng(0)
        arms = {"without": 1.0, "A/A": 1.0, "with checkpoints": slower}
        times = [{arm: mean * rng.normal(1, 1e-3, 20) for arm, mean in arms.items()} for _ in range(launches)]
        return [(each, {"copy": 0.001}) for each in times]

    monkeypatch.setattr(checkpoint_cost, "launched", launched)
    monkeypatch.setattr(findings.report, "__defaults__", (tmp_path,))
    done = CliRunner().invoke(checkpoint_cost.app, ["--launches", "4", "--freeze"])
    assert done.exit_code == code, done.output
    found = json.loads((tmp_path / "checkpointing_tiny.json").read_text())
    assert found["holds"] is (code == 0)
    assert found["measured"].startswith(f"{slower:.3f} (")
    assert "--model tiny --rounds 40 --launches 4" in found["command"]
