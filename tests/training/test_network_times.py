"""A network measured on real gloo ranks, and launches that have none."""

import os
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks

from ddpsched.config import parse
from ddpsched.costs.network import Network
from ddpsched.errors import ConfigError
from ddpsched.training.network_times import calibrate_network


def config_of(sync: str = "bucketed", **more: Any) -> Any:
    table = {
        "steps": 1, "global_batch": 8, "world_size": 2, "data": {"size": 64}, "sync": {"kind": sync, "bucket_mb": 0.25},
        "executor": {"kind": "distributed", "device": "cpu"},
    }  # fmt: skip
    return parse({**table, **more})


def measured(folder: str, sync: str) -> list[str]:
    """Measure on this rank; return what another attempt is refused with."""
    path, refused = Path(folder, "network.json"), []
    calibrate_network(path, config_of(sync))
    if os.environ["RANK"] == "0":
        try:
            calibrate_network(path, config_of(sync))
        except ConfigError as error:
            refused.append(str(error))
    return refused


@pytest.mark.parametrize("sync", ["bucketed", "naive"])
def test_two_ranks_measure_their_messages(tmp_path: Path, sync: str) -> None:
    first, _ = run_ranks(measured, 2, str(tmp_path), sync)
    found = Network.load(tmp_path / "network.json")
    assert found.identity is not None
    assert (found.identity.model, found.world_size, found.backend) == ("tiny", 2, "gloo")
    assert found.identity.parameters is not None
    flags = sum(found.messages) - 4 * found.identity.parameters  # which parameters some rank has a gradient of
    assert 0 <= flags < 1000, "float32 gradients, each once"
    assert (len(found.messages) > 1, found.overlaps) == (sync == "bucketed", sync == "bucketed")
    assert list(found.sizes) == sorted(found.sizes)
    assert found.sizes[-1] == max(found.messages)
    assert 1e-7 < found.all_reduce_s(4096, 2) < 1, "loopback takes microseconds, a loaded machine longer"
    assert found.exposed_s(2) > 0
    assert "is there already" in first[0]


def test_one_process_has_no_network(tmp_path: Path) -> None:
    for config in (config_of(), config_of(executor={"kind": "virtual"})):
        with pytest.raises(ConfigError, match=r"in 1 process\(es\); start it with: torchrun"):
            calibrate_network(tmp_path / "network.json", config)
    assert not list(tmp_path.iterdir())
