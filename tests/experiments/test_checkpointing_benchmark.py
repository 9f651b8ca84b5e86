"""The benchmark of checkpoints: in each block of the arm that writes them, one is written."""

import numpy as np
import pytest

from ddpsched.recovery.keeper import Keeper
from ddpsched.training.state import Snapshot
from experiments.benchmarks import checkpointing


def test_one_checkpoint_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointing, "MODELS", {"tiny": (2, {"data": {"size": 60}, "model": {"name": "tiny"}})})
    for owner, name in ((Snapshot, "take"), (Keeper, "_write")):  # so that they are put back
        monkeypatch.setattr(owner, name, getattr(owner, name))
    spent = checkpointing._timed()
    monkeypatch.setattr(checkpointing, "_timed", lambda: spent)
    seconds, parts = checkpointing.measure("tiny", 1, 2, 0)
    assert {arm: len(each) for arm, each in seconds.items()} == {"without": 2, "A/A": 2, "with checkpoints": 2}
    assert all((each > 0).all() for each in seconds.values())
    assert len(spent["copy"]) == 3  # a block that is left out, and two
    assert np.isfinite(list(parts.values())).all()
