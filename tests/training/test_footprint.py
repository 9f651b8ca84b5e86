"""The memory that runs keep, computed before they are built, against the tensors that they hold then."""

from pathlib import Path

import pytest
import torch
from runs import config_of

from ddpsched.errors import ConfigError
from ddpsched.training import footprint
from ddpsched.training.footprint import check_memory, kept_bytes
from ddpsched.training.learner import Learner
from ddpsched.world import World


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_it_is_that_of_weights_and_adams_numbers(tmp_path: Path, precision: str) -> None:
    config = config_of(tmp_path, train={"precision": precision})
    learner = Learner(config, config.load_samples(), torch.device("cpu"))
    weights = sum(parameter.nbytes for parameter in learner.model.parameters())
    adam = sum(
        value.nbytes
        for state in learner.optimiser._adamw.state.values()
        for value in state.values()
        if value.numel() > 1
    )
    kept, once = kept_bytes(config)
    assert once == weights
    assert kept == pytest.approx(weights + adam, rel=1e-3)


def test_ranks_on_one_machine_share_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(tmp_path, "distributed")
    kept, once = kept_bytes(config)
    assert kept == 4 * once, "the buckets of gradients too"
    monkeypatch.setattr(footprint, "free_bytes", lambda device: round(2 * (3 * kept + once) / 0.9) + 2)
    assert "3 runs in turn keep 0.0" in check_memory([config] * 3, World(0, 2))
    with pytest.raises(ConfigError, match="do not fit together"):
        check_memory([config] * 4, World(0, 2))
    monkeypatch.setattr(footprint, "free_bytes", lambda device: None)
    assert "not known here" in check_memory([config] * 4, World(0, 2))
