"""The alpha-beta model of all-reduces: its fit, what hides behind a backward, and files that are none."""

import json
from pathlib import Path

import numpy as np
import pytest

from ddpsched.costs.network import Network, fit_network
from ddpsched.errors import ConfigError

SIZES = [2**12, 2**16, 2**20, 2**24]


@pytest.mark.parametrize("ranks", [2, 8])
def test_the_fit_finds_latency_and_bandwidth(ranks: int) -> None:
    true = Network(latency_s=3e-5, bandwidth_bytes_per_s=2e9)
    latency, bandwidth = fit_network(SIZES, true.all_reduce_s(SIZES, ranks), ranks)
    assert latency == pytest.approx(3e-5)
    assert bandwidth == pytest.approx(2e9)


def test_no_fit_is_negative() -> None:
    latency, bandwidth = fit_network(SIZES, [4e-3, 3e-3, 2e-3, 1e-3], 2)
    assert latency > 0
    assert bandwidth == 1e15, "falling times have no cost of a byte"


def test_messages_hide_behind_a_backward_but_the_last() -> None:
    network = Network(bandwidth_bytes_per_s=1e9, messages=(3e9, 1e9), overlaps=True)  # 3 s and 1 s on two ranks
    assert network.exposed_s(2, np.array([0.0, 2.0, 100.0])).tolist() == [4.0, 2.0, 1.0]
    assert network.model_copy(update={"overlaps": False}).exposed_s(2, 100.0) == 4.0
    assert network.exposed_s(1, 0.0) == 0
    assert Network().exposed_s(64, 1.0) == 0


def test_a_ring_takes_longer_on_more_ranks() -> None:
    network = Network(latency_s=1e-3, bandwidth_bytes_per_s=1e9)
    assert network.all_reduce_s(1e9, 64) == pytest.approx(2 * 63 * (1e-3 + 1 / 64))


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"bandwidth_bytes_per_s": 0.0}, "bandwidth_bytes_per_s = 0.0: input should be greater than"),
        ({"bandwidth_bytes_per_s": -1e9}, "bandwidth_bytes_per_s = -1000000000.0: input should be greater than"),
        ({"latency_s": -1e-6}, "latency_s = -1e-06: input should be greater than or equal to 0"),
        ({"world_size": 70_000}, "world_size = 70000: input should be less than or equal to 65536"),
        ({"kind": "calibration"}, "kind = 'calibration', expected"),
        ({"colour": 1}, "colour = 1: extra inputs"),
    ],
)
def test_files_that_are_no_network(tmp_path: Path, values: dict[str, object], fault: str) -> None:
    path = tmp_path / "network.json"
    path.write_text(json.dumps({**Network().model_dump(), **values}))
    with pytest.raises(ConfigError) as raised:
        Network.load(path)
    assert fault in str(raised.value)
    assert "write one with: torchrun" in str(raised.value)


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path, network = tmp_path / "network.json", Network(latency_s=1e-4, messages=(5.0, 7.0), world_size=2)
    path.write_text(json.dumps(network.model_dump()))
    assert Network.load(path) == network
    path.write_text("{")
    with pytest.raises(ConfigError, match="not JSON"):
        Network.load(path)
