"""The benchmark of checkpoints: in each block of the arm that writes them, one is written."""

import numpy as np
import pytest

from ddpsched.recovery.keeper import Keeper
from ddpsched.training.state import Snapshot
from experiments.benchmarks import checkpointing


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
