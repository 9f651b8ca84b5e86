"""Errors of simulated steps: what speeds, noise and a fixed part correct, on made-up measurements."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddpsched.config import dump
from ddpsched.costs.network import Network
from ddpsched.records import write_json
from ddpsched.run_folder import STATUS
from experiments.benchmarks.simulator import Measured, Simulated, again, config_of, errors, finished, main

DRAW = np.random.default_rng(0)
COUNTS = DRAW.integers(1_000, 3_000, (80, 4))  # samples of a token each, of each rank in each step
PLANNED = COUNTS / 1e3  # seconds
WARM_UP = 30
SHAPES = COUNTS, np.ones_like(COUNTS)


def simulated(network: Network | None = None) -> Simulated:
    return Simulated(PLANNED, PLANNED.max(1), network)


def measured(speeds: Any = 1.0, fixed_s: float = 0.0, noise: float = 0.0, seed: int = 1) -> Measured:
    draws = np.random.default_rng(seed)
    compute = PLANNED * speeds * draws.lognormal(0, noise, PLANNED.shape)
    return Measured({"wall": compute}, {"wall": compute.max(1) + fixed_s}, *SHAPES, [])


def found(steps: Measured, network: Network | None = None) -> dict[str, float]:
    each = errors(simulated(network), simulated(network), [steps, steps], "wall", WARM_UP)
    return {name: error.mean for name, error in each.items()}


def test_what_is_simulated_exactly_has_no_error() -> None:
    assert max(found(measured()).values()) == pytest.approx(0, abs=1e-6)


def test_speeds_are_learnt_from_the_warm_up() -> None:
    errors_of = found(measured(speeds=np.array([1.0, 1.5, 0.8, 1.2])))
    assert errors_of["curve"] > 0.1
    assert errors_of["speeds"] == pytest.approx(0, abs=1e-12)


def test_records_correct_what_no_speed_does() -> None:
    """A constant in each micro-batch, and tokens that take longer than the calibration has them."""
    compute = 0.7 + 1.3 * PLANNED
    steps = Measured({"wall": compute}, {"wall": compute.max(1)}, *SHAPES, [])
    each = errors(simulated(), simulated(), [steps], "wall", WARM_UP)
    assert each["speeds"].mean > 0.02
    assert each["records"].mean == pytest.approx(0, abs=1e-6)


def test_a_fixed_part_and_messages_are_of_the_model() -> None:
    assert found(measured(fixed_s=1.0))["speeds"] > 0.2
    assert found(measured(fixed_s=1.0))["fixed"] == pytest.approx(0, abs=1e-6)
    network = Network(messages=(1e9,), bandwidth_bytes_per_s=1.5e9)  # a second on four ranks
    assert found(measured(fixed_s=1.0), network)["curve"] == pytest.approx(0, abs=1e-12)


def test_a_step_waits_for_the_largest_draw_of_its_ranks() -> None:
    alike = Simulated(np.ones((80, 16)), np.ones(80), None)
    compute = DRAW.lognormal(0, 0.2, (80, 16))
    shapes = np.full((80, 16), 1000), np.ones((80, 16), int)
    steps = Measured({"wall": compute}, {"wall": compute.max(1)}, *shapes, [])
    each = errors(alike, alike, [steps], "wall", WARM_UP)
    assert each["noise"].mean < 0.7 * each["records"].mean
    later = Measured({"wall": compute}, {"wall": compute.max(1) + 1.0}, *shapes, [])
    assert errors(alike, alike, [later], "wall", WARM_UP)["fixed"].mean < 1.1 * each["noise"].mean


def test_two_runs_of_the_same_steps_show_the_noise() -> None:
    one, other = measured(noise=0.05), measured(noise=0.05, seed=2)
    floor = again([one, other], "wall", WARM_UP)
    assert 0.01 < floor.mean < 0.1 <= 3 * floor.p90
    assert again([one, one], "wall", WARM_UP).mean == 0


def test_repeats_take_the_noise_of_one_measurement_away() -> None:
    runs = [measured(noise=0.05, seed=seed) for seed in range(8)]
    alone, together = (errors(simulated(), simulated(), some, "wall", WARM_UP) for some in (runs[:1], runs))
    assert together["fixed"].mean < 0.6 * alone["fixed"].mean
    assert again(runs, "wall", WARM_UP).mean < 0.8 * again(runs[:2], "wall", WARM_UP).mean


def test_the_middle_half_of_repeats_counts() -> None:
    runs = [measured(speeds=speed) for speed in (1.0, 1.0, 1.2, 9.0)]
    assert Measured.middle(runs).compute["wall"] == pytest.approx(1.1 * PLANNED)


def test_a_cut_off_call_goes_on_with_what_is_left(tmp_path: Path) -> None:
    config, file = config_of("tiny", "virtual", "static", None, 4, tmp_path), tmp_path / "run.toml"
    assert not finished(file, config), "nothing ran"
    file.write_text(dump(config))
    assert not finished(file, config), "it began"
    config.run_dir.mkdir(parents=True)
    write_json(config.run_dir / STATUS, {"state": "done"})
    assert finished(file, config)
    assert not finished(file, config.model_copy(update={"steps": 5})), "another run"


def test_steps_that_nothing_is_left_of_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    assert main(["--steps", "10", "--warm-up", "10", "--output", str(tmp_path)]) == 1
    assert "--warm-up 10: must be above 3 and below --steps 10" in capsys.readouterr().err
    assert main(["--repeats", "1", "--output", str(tmp_path)]) == 1
    assert "--repeats 1: must be at least 2" in capsys.readouterr().err
    config = config_of("tiny", "virtual", "static", None, 10, tmp_path)
    assert (config.world_size, config.data.max_length) == (4, 64)
