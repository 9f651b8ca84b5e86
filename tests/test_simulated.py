"""Simulated ranks on the times of a calibration and a network: the sums by hand, and files that belong elsewhere."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from ddpsched.cli import app
from ddpsched.config import dump, parse
from ddpsched.costs.calibration import Calibration, Identity, Measured, Residuals, Seconds
from ddpsched.costs.network import BACKWARD, Network
from ddpsched.errors import ConfigError
from ddpsched.run_loop import run
from ddpsched.simulated import clocks

MINE = Identity(model="tiny", parameters=1000, device="CPU", precision="float32", threads=1, max_length=128)
COST = Seconds(alpha=1e-2, beta=1e-3, gamma=0.0, delta=0.0, floor=0.0)


def calibration_in(folder: Path, curved: float = 1.0, **changed: Any) -> str:
    """Write a calibration whose measured times are ``curved`` times what its fit says beyond 100 tokens."""
    sizes = [(1, 4), (4, 10), (8, 32), (8, 64), (16, 64)]
    points = [
        Measured(
            count=n, length=length, held_out=False, peak_bytes=None,
            seconds=[(1e-2 + 1e-3 * n * length) * (curved if n * length > 100 else 1.0)],
        )
        for n, length in sizes
    ]  # fmt: skip
    exact = Residuals(train_mean=0, train_max=0, held_out_mean=0, held_out_max=0, worst_underestimate=0)
    found = Calibration(
        identity=MINE.model_copy(update=changed), versions={}, seconds=COST, bytes=None, seconds_residuals=exact,
        bytes_residuals=None, points=points,
    )  # fmt: skip
    path = folder / "device.json"
    path.write_text(json.dumps(found.model_dump()))
    return str(path)


def network_in(folder: Path, **changed: Any) -> str:
    found = Network(
        identity=MINE.model_copy(update=changed), world_size=2, backend="gloo", latency_s=1e-3,
        bandwidth_bytes_per_s=1e9, messages=(1e8, 1e7), overlaps=True,
    )  # fmt: skip
    path = folder / "network.json"
    path.write_text(json.dumps(found.model_dump()))
    return str(path)


def config_of(folder: Path, policy: str = "static", executor: dict[str, Any] | None = None, **more: Any) -> Any:
    table = {
        "outputs": str(folder), "steps": 5, "global_batch": 12, "world_size": 2, "data": {"size": 200},
        "policy": {"kind": policy}, "executor": {"kind": "simulated", **(executor or {})},
    }  # fmt: skip
    return parse({**table, **more})


def test_a_step_is_the_slowest_rank_and_what_messages_add(tmp_path: Path) -> None:
    clock = {"calibration": calibration_in(tmp_path), "network": network_in(tmp_path), "slowness": [1.0, 0.5]}
    records = pd.read_parquet(run(config_of(tmp_path, executor=clock)) / "records.parquet")
    seconds = (1e-2 + 1e-3 * records["padded_tokens"]) * records["rank"].map({0: 1.0, 1: 0.5})
    assert records["compute_s"].to_numpy() == pytest.approx(seconds.to_numpy(), rel=1e-6)
    last, both = 2 * (1e-3 + 1e7 / 2 / 1e9), 2 * (2e-3 + 1.1e8 / 2 / 1e9)
    for _, step in records.groupby("step"):
        slowest = step["compute_s"].max()
        exposed = max(last, both - BACKWARD * slowest)
        assert step["step_s"].to_numpy() == pytest.approx(slowest + exposed)
        assert (step["compute_s"] + step["wait_s"]).to_numpy() == pytest.approx(slowest + exposed)


def test_the_curve_beside_the_fit_counts(tmp_path: Path) -> None:
    seconds = [
        pd.read_parquet(
            run(config_of(tmp_path, executor={"calibration": calibration_in(tmp_path, curved)}), overwrite=True)
            / "records.parquet"
        )["compute_s"].to_numpy()
        for curved in (1.0, 2.0)
    ]
    assert (seconds[1] >= 0.999 * seconds[0]).all()
    assert 1.3 < np.median(seconds[1] / seconds[0]) <= 2.001


@pytest.mark.parametrize(
    ("measured", "run_of", "words"),
    [
        ({"model": "distilbert-base-uncased"}, {}, "model distilbert-base-uncased measured, tiny in this run"),
        ({"threads": 2}, {}, "threads 2 measured, 1 in this run"),
        ({}, {"data": {"size": 200, "max_length": 256}}, "up to 128 tokens measured, 256 in this run"),
    ],
)
def test_a_calibration_of_another_model_is_refused_unless_forced(
    tmp_path: Path, measured: dict[str, Any], run_of: dict[str, Any], words: str
) -> None:
    config = config_of(tmp_path, executor={"calibration": calibration_in(tmp_path, **measured)}, **run_of)
    with pytest.raises(ConfigError) as raised:
        run(config)
    assert words in str(raised.value)
    assert "or pass --force" in str(raised.value)
    assert not config.run_dir.exists(), "before anything is written"
    run(config, force=True)


def test_files_of_two_devices_are_refused_and_the_command_takes_force(tmp_path: Path) -> None:
    clock = {"calibration": calibration_in(tmp_path), "network": network_in(tmp_path, device="GPU", parameters=7)}
    path = tmp_path / "run.toml"
    path.write_text(dump(config_of(tmp_path, executor=clock)))
    refused = CliRunner().invoke(app, ["run", str(path)])
    assert refused.exit_code == 1
    assert "parameters 7 measured, 1000 in this run; device GPU measured, CPU in this run" in refused.stderr
    assert CliRunner().invoke(app, ["run", str(path), "--force"]).exit_code == 0


@pytest.mark.parametrize(
    ("executor", "fault"),
    [
        ({"calibration": "device.json", "beta_s": 1e-3}, "calibration = 'device.json' and beta_s = 0.001 both"),
        ({"network": "network.json", "gradient_bytes": 1e6}, "network = 'network.json' and gradient_bytes = 1000000"),
        ({"bandwidth_bytes_per_s": 0.0}, "bandwidth_bytes_per_s = 0.0"),
        ({"bandwidth_bytes_per_s": -1.0}, "bandwidth_bytes_per_s = -1.0"),
        ({"slowness": [1.0, 0.0]}, "greater than 0"),
        ({"kind": "virtual", "slowness": [1.0, 0.5]}, "executor.slowness = [1.0, 0.5]: a rank of executor.kind"),
    ],
)
def test_what_contradicts_itself_is_refused(tmp_path: Path, executor: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError) as raised:
        config_of(tmp_path, executor=executor)
    assert fault in str(raised.value)


def test_files_that_are_missing_say_how_to_write_one(tmp_path: Path) -> None:
    for name, command in (("calibration", "ddpsched calibrate CONFIG"), ("network", "--network --output FILE")):
        with pytest.raises(ConfigError) as raised:
            clocks(config_of(tmp_path, executor={name: str(tmp_path / "none.json")}))
        assert command in str(raised.value)


def test_auto_chooses_by_the_calibration(tmp_path: Path) -> None:
    clock = {"calibration": calibration_in(tmp_path)}
    folder = run(config_of(tmp_path, "auto", executor=clock))
    chosen = json.loads((folder / "environment.json").read_text())["auto"]
    assert chosen["chosen"] == "packed"
    assert chosen["times"]["padded"]["beta"] == 1e-3
