"""A real calibration of the tiny model, and the refusals before anything is measured."""

import os
import sys
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from ddpsched.cli import app
from ddpsched.config import RunConfig, parse
from ddpsched.costs.calibration import Calibration
from ddpsched.costs.calibration_grid import GridPoint, calibration_grid
from ddpsched.costs.config import CostConfig, cost_model
from ddpsched.costs.memory_cap import Cap
from ddpsched.errors import ConfigError
from ddpsched.training import calibrate
from ddpsched.training.calibrate import calibrate_to, check_calibrations, identity_of, measure
from ddpsched.training.collate import Batch
from ddpsched.training.learner import Learner

MIB = 2**20


def config_of(**values: Any) -> RunConfig:
    table = {"steps": 2, "global_batch": 35, "world_size": 4, "data": {"size": 64, "max_length": 96}}
    return parse({**table, "executor": {"device": "cpu"}, **values})


def learner_of(config: RunConfig) -> Learner:
    return Learner(config, config.load_samples(), torch.device("cpu"))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Calibration]:
    """Write a real calibration of few passes."""
    path = tmp_path_factory.mktemp("calibration") / "tiny.json"
    return path, calibrate_to(path, config_of(), passes=5)


@pytest.mark.parametrize(
    ("policy", "most"), [("static", 32), ("token_budget", 16)], ids=["as many as B leaves a rank", "what is measured"]
)
def test_how_many_samples_are_measured(tmp_path: Path, policy: str, most: int) -> None:
    """global_batch does not limit micro-batches that fill by tokens."""
    budget = {"max_tokens_for_batch": 100} if policy == "token_budget" else {}
    config = config_of(policy={"kind": policy, **budget})
    found = calibrate_to(tmp_path / "tiny.json", config, passes=1, max_tokens=64 if budget else 512)
    assert max(p.count for p in found.points) == most


def test_the_tiny_model_is_measured(written: tuple[Path, Calibration]) -> None:
    path, found = written
    assert found.identity.model == "tiny"
    assert (found.identity.precision, found.identity.threads, found.identity.max_length) == ("float32", 1, 96)
    assert found.identity.shape is not None
    assert found.identity.shape["hidden_size"] == 64
    assert found.versions["torch"] == torch.__version__.split("+")[0] or found.versions["torch"] == torch.__version__
    assert {p.count for p in found.points} == {1, 2, 4, 8, 16, 32}, "up to what a plan could ask of a rank"
    assert all(len(p.seconds) == 5 for p in found.points)
    assert found.seconds_residuals.held_out_mean < 0.35, "a loaded machine is noisy; a broken fit is far beyond"
    large, small = found.time.seconds(8, 96), found.time.seconds(1, 4)
    assert large > 2 * small
    assert Calibration.load(path).check(identity_of(config_of(), learner_of(config_of()))) == []


@pytest.mark.skipif(sys.platform != "linux", reason="peaks of a process are read from /proc")
def test_its_memory_is_not_under_estimated(written: tuple[Path, Calibration]) -> None:
    _, found = written
    assert found.bytes_residuals is not None
    assert found.bytes_residuals.worst_underestimate < 0.02
    for p in found.points:
        assert p.peak_bytes is not None
        assert int(found.memory.bytes(p.count, p.length)) >= p.peak_bytes
    grows = found.memory.bytes(32, 96) - found.memory.bytes(1, 4)
    assert 10 * MIB < grows < 500 * MIB
    cap = Cap(int(found.memory.bytes(20, 64)) - found.memory.fixed, found.memory.sample)
    assert cap.limit(np.array([64])).tolist() == [20]


def test_another_precision_or_model_is_refused(written: tuple[Path, Calibration]) -> None:
    found = Calibration.load(written[0])
    double = config_of(train={"precision": "float64"})
    with pytest.raises(ConfigError, match="float32 measured, float64 in this run"):
        found.check(identity_of(double, learner_of(double)))
    dropped = config_of(model={"dropout": 0.0})
    with pytest.raises(ConfigError, match=r"model attention_dropout 0\.1 measured, 0\.0 in this run"):
        found.check(identity_of(dropped, learner_of(dropped)))
    large = config_of(data={"size": 64, "max_length": 97})
    with pytest.raises(ConfigError, match="97 in this run"):
        found.check(identity_of(large, learner_of(large)))


def test_the_calibrations_of_a_config_are_checked(written: tuple[Path, Calibration]) -> None:
    path = str(written[0])
    for named in ({"cost": {"kind": "calibrated", "path": path}}, {"memory": {"path": path, "budget_bytes": 10**9}}):
        fitting, other = config_of(**named), config_of(**named, train={"precision": "float64"})
        assert check_calibrations(fitting, learner_of(fitting)) == []
        with pytest.raises(ConfigError, match=rf"{path} was measured for model 'tiny'.*float64"):
            check_calibrations(other, learner_of(other))
        assert check_calibrations(other, learner_of(other), force=True) == [
            "precision float32 measured, float64 in this run"
        ]
    assert check_calibrations(config_of(), learner_of(config_of())) == []


def test_bfloat16_is_named() -> None:
    config = config_of(train={"precision": "bfloat16"})
    assert identity_of(config, learner_of(config)).precision == "bfloat16"


def test_passes_go_over_the_whole_grid_each_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, order = learner_of(config_of()), []

    def seconds(learner: Learner, point: GridPoint) -> float:
        order.append(point)
        return 1e-3

    monkeypatch.setattr(calibrate, "_seconds", seconds)
    grid = calibration_grid(4, 16, 64)
    measure(learner, grid, passes=3)
    passes = [order[i : i + len(grid)] for i in range(0, len(order), len(grid))]
    assert [sorted(one) for one in passes] == [sorted(grid)] * 3
    assert len({tuple(one) for one in passes}) == 3
    assert all(p.grad is None for p in learner.model.parameters())


def test_quick_models_get_more_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, grid = learner_of(config_of()), calibration_grid(2, 8, 16)
    monkeypatch.setattr(calibrate, "_seconds", lambda learner, point: 1e-3)
    assert {len(p.seconds) for p in measure(learner, grid)} == {calibrate.MOST_PASSES}
    monkeypatch.setattr(calibrate, "QUIET_S", 0.0)
    assert {len(p.seconds) for p in measure(learner, grid)} == {calibrate.PASSES}


def test_what_the_device_cannot_hold_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, tried = learner_of(config_of()), []
    loss_sum = Learner.loss_sum

    def limited(self: Learner, batch: Batch) -> torch.Tensor:
        tried.append(tuple(batch.input_ids.shape))
        if batch.input_ids.numel() > 60:
            raise torch.OutOfMemoryError("planted")
        return loss_sum(self, batch)

    monkeypatch.setattr(Learner, "loss_sum", limited)
    points = measure(learner, calibration_grid(8, 64, 512), passes=1)
    assert max(p.count * p.length for p in points) <= 60
    assert {(p.count, p.length) for p in points} >= {(1, 45), (8, 6)}
    assert (8, 64) not in tried, "larger than one that failed"


def test_other_errors_are_not_taken_for_a_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    loss_sum = Learner.loss_sum

    def broken(self: Learner, batch: Batch) -> torch.Tensor:
        if batch.input_ids.numel() > 20:
            raise RuntimeError("planted")
        return loss_sum(self, batch)

    learner = learner_of(config_of())
    monkeypatch.setattr(Learner, "loss_sum", broken)
    with pytest.raises(RuntimeError, match="planted"):
        measure(learner, calibration_grid(4, 16, 64), passes=1)


def test_waiting_for_a_core_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    loss_sum = Learner.loss_sum

    def interrupted(self: Learner, batch: Batch) -> torch.Tensor:
        sleep(0.3)
        return loss_sum(self, batch)

    monkeypatch.setattr(Learner, "loss_sum", interrupted)
    times = {}
    for threads in (1, 2):
        learner = learner_of(config_of(executor={"device": "cpu", "threads": threads}))
        times[threads] = calibrate._seconds(learner, GridPoint(2, 8, False))
    torch.set_num_threads(1)
    assert times[1] < 0.3 < times[2]


def test_a_system_that_does_not_tell_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("ddpsched.training.clock.PeakMemory.read", lambda self: None)
    found = calibrate_to(tmp_path / "c.json", config_of(), passes=1)
    assert found.bytes is None
    assert Calibration.load(tmp_path / "c.json").time == found.time


@pytest.mark.gpu
def test_a_gpu_is_within_five_percent(tmp_path: Path) -> None:
    config = config_of(
        global_batch=256, policy={"prefetch": 64}, data={"size": 64, "max_length": 256}, executor={"device": "cuda"}
    )
    found = calibrate_to(tmp_path / "c.json", config)
    assert (found.identity.threads, found.identity.precision) == (None, "bfloat16")
    assert found.seconds_residuals.held_out_mean <= 0.05
    assert found.bytes_residuals is not None
    assert found.bytes_residuals.worst_underestimate <= 0.02


def measured_nothing(*given: Any) -> Any:
    raise AssertionError("it measured before it knew where to write")


@pytest.mark.parametrize(
    ("output", "values", "words"),
    [
        ("missing/c.json", {}, "there is no folder .*missing"),
        (".", {}, r"is a folder; give a file, .*calibration\.json"),
        ("there.json", {}, "is there already.*--overwrite"),
        ("c.json", {"executor": {"kind": "simulated"}}, "runs no model.*executor.kind=virtual"),
    ],
)
def test_refusals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, values: dict[str, Any], words: str
) -> None:
    (tmp_path / "there.json").write_text("kept")
    monkeypatch.setattr(calibrate, "measure", measured_nothing)
    with pytest.raises(ConfigError, match=words):
        calibrate_to(tmp_path / output, config_of(**values))
    assert [p.name for p in tmp_path.iterdir()] == ["there.json"]
    assert (tmp_path / "there.json").read_text() == "kept"


def test_a_folder_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "measure", measured_nothing)
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    with pytest.raises(ConfigError, match="cannot be written to"):
        calibrate_to(tmp_path / "c.json", config_of())


def test_one_process_calibrates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(calibrate, "measure", measured_nothing)
    with pytest.raises(ConfigError, match="2 processes"):
        calibrate_to(tmp_path / "c.json", config_of())


def test_nothing_is_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c.json"
    path.write_text("kept")
    points = measure(learner_of(config_of()), calibration_grid(8, 96, 1024), passes=1)
    monkeypatch.setattr(calibrate, "measure", lambda *given: points)

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("ddpsched.records.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        calibrate_to(path, config_of(), overwrite=True)
    assert path.read_text() == "kept"
    assert [p.name for p in tmp_path.iterdir()] == ["c.json"]


def test_a_config_plans_by_it(written: tuple[Path, Calibration]) -> None:
    path, found = written
    cost = cost_model(CostConfig(kind="calibrated", path=str(path)))
    assert cost.padded(8, 96) == found.time.padded(8, 96)
    with pytest.raises(ConfigError, match=r'set cost\.kind = "calibrated", which compares'):
        cost_model(CostConfig(kind="affine_quadratic", path=str(path)))
    assert found.time.floor == 0, "on a CPU"
    assert cost.padded(np.arange(3), 8).tolist() == [0, int(found.time.padded(1, 8)), int(found.time.padded(2, 8))]


def test_a_plain_fit_is_no_calibration(tmp_path: Path) -> None:
    (tmp_path / "fit.json").write_text('{"kind": "affine_quadratic", "alpha": 0.1, "beta": 0.01, "gamma": 0}')
    with pytest.raises(ConfigError, match=r"a fit of `ddpsched fit`"):
        cost_model(CostConfig(kind="calibrated", path=str(tmp_path / "fit.json")))


def test_the_command(tmp_path: Path) -> None:
    toml, output = tmp_path / "run.toml", tmp_path / "c.json"
    toml.write_text('steps = 2\nglobal_batch = 8\nexecutor = { device = "cpu" }\n')
    words = ["calibrate", str(toml), "data.max_length=32", "--output", str(output)]
    done = CliRunner().invoke(app, [*words, "--passes", "2", "--tokens", "64"])
    assert done.exit_code == 0, done.output
    assert "held out" in done.output
    assert "relative error" in done.output
    assert f"written to {output}" in done.output
    found = Calibration.load(output)
    assert found.identity.max_length == 32
    assert max(p.count * p.length for p in found.points) <= 64
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 1
    assert "error: --output" in again.output
    assert "--overwrite" in again.output
