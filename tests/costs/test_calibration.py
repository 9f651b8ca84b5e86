"""Calibration grids, fits, files and their refusals, and a rank's speed. No model runs here."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpsched.costs.calibration import Calibration, Identity, Measured
from ddpsched.costs.calibration_grid import calibration_grid
from ddpsched.costs.cost_model import CostModel
from ddpsched.costs.fit_calibration import fit_calibration, summary, table
from ddpsched.costs.memory_cap import Cap, MemoryModel
from ddpsched.costs.rank_speed import Speed
from ddpsched.costs.regression import fit_affine_quadratic, fit_memory, fit_time
from ddpsched.errors import ConfigError, DataError
from ddpsched.records import write_json

IDENTITY = Identity(
    model="distilbert-base-uncased",
    parameters=66_955_010,
    shape={"class": "DistilBertForSequenceClassification", "hidden_size": 768},
    device="Example CPU",
    precision="float32",
    threads=1,
    max_length=128,
)
WORK = CostModel(0.09, 2.6e-3, 4e-6, delta=1e-3)
MEMORY = MemoryModel(1.6e9, 2e4, 3.7e5, 1e3)


def measured(time: Any = WORK, memory: MemoryModel | None = MEMORY, noise: float = 0.02) -> list[Measured]:
    """Return measurements on the grid of DistilBERT on a CPU, with lognormal noise in times and peaks."""
    rng = np.random.default_rng(0)
    points = []
    for p in calibration_grid(29, 128, 1024):
        seconds = float(time.seconds(p.count, p.length)) * np.exp(noise * rng.normal(size=3))
        peak = None if memory is None else int(memory.bytes(p.count, p.length) * np.exp(noise / 4 * rng.normal()))
        points.append(
            Measured(count=p.count, length=p.length, held_out=p.held_out, seconds=seconds.tolist(), peak_bytes=peak)
        )
    return points


def columns(*size: int) -> tuple[Any, Any, Any]:
    """Return the grid's counts, lengths and held-out flags, (points,) each."""
    grid = calibration_grid(*size)
    return tuple(np.array([getattr(p, name) for p in grid]) for name in ("count", "length", "held_out"))


@pytest.fixture
def calibration() -> Calibration:
    return fit_calibration(measured(), IDENTITY, {"torch": "2.13.0"})


@given(st.integers(1, 300), st.integers(3, 600), st.integers(1, 40_000))
def test_the_grid(max_count: int, max_length: int, max_tokens: int) -> None:
    grid = calibration_grid(max_count, max_length, max_tokens)
    assert all(p.count * p.length <= max_tokens or p.count == 1 for p in grid)
    assert {p.length for p in grid if p.count == 1} >= {min(4, max_length), max_length}
    shortest = min(4, max_length)
    assert max_count * shortest > max_tokens or max_count in {p.count for p in grid if p.length == shortest}
    assert [p.count * p.length for p in grid] == sorted(p.count * p.length for p in grid), "small to large"
    fitted = [(p.count, p.length) for p in grid if not p.held_out]
    assert (1, min(4, max_length)) in fitted
    assert (1, max_length) in fitted
    for axis in (0, 1):
        assert max(p[axis] for p in fitted) == max((p.count, p.length)[axis] for p in grid), "both ends are in the fit"


def test_a_third_is_held_out_and_every_count_and_length_is_in_the_fit() -> None:
    grid = calibration_grid(29, 128, 1024)
    held = [p for p in grid if p.held_out]
    assert len(grid) / 4 < len(held) < len(grid) / 2
    for axis in ("count", "length"):
        assert {getattr(p, axis) for p in grid if not p.held_out} == {getattr(p, axis) for p in grid}
        assert len({getattr(p, axis) for p in held}) >= 5


def test_time_is_found_again() -> None:
    count, length, _ = columns(29, 128, 1024)
    model = fit_time(count, length, WORK.seconds(count, length))
    assert model.floor == 0
    for name in ("alpha", "beta", "gamma", "delta"):
        assert getattr(model, name) == pytest.approx(getattr(WORK, name), rel=1e-4), name


@pytest.mark.parametrize("launch", [0.0, 3e-3, 9e-3])
def test_a_launch_bound_gpu_has_a_floor(launch: float) -> None:
    """max(launch, work) with 2 % noise is fitted within 5 % on held-out points; a line alone misses."""
    work = CostModel(5e-4, 2e-6, 2e-9)
    count, length, held = columns(253, 256, 32768)
    rng = np.random.default_rng(1)
    seconds = np.maximum(launch, work.seconds(count, length)) * np.exp(0.02 * rng.normal(size=len(count)))

    def error(model: Any) -> float:
        return float((abs(model.seconds(count, length) - seconds) / seconds)[held].mean())

    model = fit_time(count[~held], length[~held], seconds[~held])
    assert error(model) < 0.025
    assert (model.floor > 0) == (launch > 0)
    if model.floor:
        assert model.floor == pytest.approx(launch, rel=0.02)
        assert error(fit_affine_quadratic(count[~held], length[~held], seconds[~held]).model) > 0.05


def test_disturbed_points_do_not_pull_the_others() -> None:
    count, length, _ = columns(29, 128, 1024)
    seconds = WORK.seconds(count, length)
    seconds[::10] *= 2
    clean = np.arange(len(count)) % 10 != 0

    def error(model: Any) -> float:
        return float((abs(model.seconds(count, length) - WORK.seconds(count, length)) / seconds)[clean].mean())

    assert error(fit_time(count, length, seconds)) < 1e-3
    assert error(fit_affine_quadratic(count, length, seconds).model) > 2e-2, "least squares is pulled"


def most_samples(memory: MemoryModel, budget: int, length: int) -> int:
    """Return how many samples of this length fit the budget."""
    return int(Cap(budget - memory.fixed, memory.sample).limit(np.array([length]))[0])


@given(st.integers(0, 40), st.integers(1, 200), st.integers(0, 10**10))
def test_costs_and_memory_are_exactly_invertible(count: int, length: int, budget: int) -> None:
    linear = CostModel(1e-3, 3e-7, 1e-9, delta=1e-5)
    fitting = (budget - linear.fixed) // int(linear.sample(length))
    below, above = linear.padded([fitting, fitting + 1], length).tolist()
    assert budget < linear.fixed or below <= budget < above
    floored = replace(linear, floor=2e-3)
    expected = max(int(linear.padded(count, length)), 2_000_000) if count else 0
    assert int(floored.padded(count, length)) == expected == floored.packed([length] * count)
    memory = MemoryModel(123.4, 0.3, 10.1, 0.05)
    most = most_samples(memory, budget, length)
    assert most == 0 or int(memory.bytes(most, length)) <= budget
    assert int(memory.bytes(most + 1, length)) > budget
    assert memory.fixed + int(memory.sample([length] * count).sum()) == int(memory.bytes(count, length))


def test_memory_lies_above_every_point_and_close() -> None:
    points = measured()
    count, length, peaks = (np.array([getattr(p, n) for p in points]) for n in ("count", "length", "peak_bytes"))
    over = fit_memory(count, length, peaks).bytes(count, length) / peaks - 1
    assert over.min() >= 0
    assert over.mean() < 0.02


def test_memory_that_no_measurement_saw_is_not_free() -> None:
    flat = fit_memory([1, 2, 4, 1, 2, 4], [4, 4, 4, 8, 8, 8], [1000] * 6)
    assert most_samples(flat, 1001, 8) == 1


def test_what_is_held_out_judges_and_then_raises_the_memory_model() -> None:
    points = measured()
    worst = max((p for p in points if p.held_out), key=lambda p: p.count * p.length)
    points[points.index(worst)] = worst.model_copy(update={"peak_bytes": int(1.1 * (worst.peak_bytes or 0))})
    calibration = fit_calibration(points, IDENTITY, {})
    assert calibration.bytes_residuals is not None
    assert 0.05 < calibration.bytes_residuals.worst_underestimate < 0.1
    for p in points:
        assert int(calibration.memory.bytes(p.count, p.length)) >= (p.peak_bytes or 0)


def test_times_off_on_held_out_points_alone_are_seen() -> None:
    points = [
        p.model_copy(update={"seconds": [2 * s for s in p.seconds]}) if p.held_out else p for p in measured(noise=0.0)
    ]
    residuals = fit_calibration(points, IDENTITY, {}).seconds_residuals
    assert residuals.train_mean < 1e-6
    assert residuals.held_out_mean == pytest.approx(0.5, abs=1e-6)


def test_held_out_points_do_not_touch_the_time_model(calibration: Calibration) -> None:
    other = [p.model_copy(update={"seconds": [1.3 * s for s in p.seconds]}) if p.held_out else p for p in measured()]
    assert fit_calibration(other, IDENTITY, {}).seconds == calibration.seconds


def test_noise_of_two_percent_leaves_two_percent(calibration: Calibration) -> None:
    assert 0.003 < calibration.seconds_residuals.held_out_mean < 0.03
    assert calibration.bytes_residuals is not None
    assert calibration.bytes_residuals.held_out_mean < 0.03
    assert "held out" in summary(calibration)
    assert table(calibration).row_count == sum(p.held_out for p in calibration.points)


def test_a_noisy_device_is_named(calibration: Calibration) -> None:
    assert re.search(r"same micro-batches differ by [1-4]% in the median$", summary(calibration), re.MULTILINE)
    noisy = summary(fit_calibration(measured(memory=None, noise=1.0), IDENTITY, {}))
    assert re.search(r"differ by \d{2,3}% in the median; the device is busy or noisy, so calibrate again", noisy)


def test_a_calibration_is_written_and_read_back(calibration: Calibration, tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    write_json(path, calibration.model_dump())
    again = Calibration.load(path)
    assert again.model_dump() == calibration.model_dump()
    assert again.time == calibration.time
    assert again.memory == calibration.memory
    assert again.check(IDENTITY) == []


def test_a_floor_is_written_and_read_back(tmp_path: Path) -> None:
    calibration = fit_calibration(measured(replace(WORK, floor=0.3)), IDENTITY, {})
    write_json(tmp_path / "c.json", calibration.model_dump())
    time = Calibration.load(tmp_path / "c.json").time
    assert time.floor == pytest.approx(0.3, rel=0.03)
    assert "at least 0." in summary(calibration)


def test_no_memory_is_said_and_refused_where_it_is_asked_for() -> None:
    calibration = fit_calibration(measured(memory=None), IDENTITY, {})
    assert calibration.bytes is None
    assert "no memory model" in summary(calibration)
    assert table(calibration).row_count > 0
    with pytest.raises(ConfigError, match=r"no memory model.*memory\.probe"):
        _ = calibration.memory


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"device": "Other CPU"}, "device Example CPU measured, Other CPU in this run"),
        ({"precision": "bfloat16"}, "precision float32 measured, bfloat16 in this run"),
        ({"threads": 4}, "threads 1 measured, 4 in this run"),
        ({"parameters": 150_466, "model": "tiny"}, "parameters 66955010 measured, 150466 in this run"),
        (
            {"shape": {"class": "DistilBertForSequenceClassification", "hidden_size": 64}},
            "model hidden_size 768 measured",
        ),
        ({"shape": None, "model": "tiny"}, "model distilbert-base-uncased measured, tiny in this run"),
        ({"max_length": 256}, "up to 128 tokens measured, 256 in this run"),
    ],
)
def test_another_run_is_refused_by_name(calibration: Calibration, change: dict[str, Any], words: str) -> None:
    run = IDENTITY.model_copy(update=change)
    with pytest.raises(ConfigError, match=words) as error:
        calibration.check(run)
    assert "Calibrate anew" in str(error.value)
    assert "--force" in str(error.value)
    assert len(calibration.check(run, force=True)) == 1


def test_a_folder_and_a_hub_name_may_hold_the_same_model(calibration: Calibration) -> None:
    assert calibration.check(IDENTITY.model_copy(update={"model": "/models/distilbert", "max_length": 64})) == []


def rewritten(path: Path, calibration: Calibration, **changes: Any) -> Path:
    write_json(path, calibration.model_dump() | changes)
    return path


def test_bad_files(calibration: Calibration, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    again = r"c\.json.*ddpsched calibrate"
    with pytest.raises(ConfigError, match=rf"(?s){again}"):
        Calibration.load(path)
    with pytest.raises(ConfigError, match="Is a directory"):
        Calibration.load(tmp_path)
    for text in ("", "{", "[1]", '"calibration"', "{}", '{"kind": "else"}'):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=again):
            Calibration.load(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=again):
        Calibration.load(path)
    fitted = fit_affine_quadratic([1, 2, 4, 8], [10, 20, 30, 9], [0.1, 0.2, 0.5, 0.3])
    fitted.save(path)
    with pytest.raises(ConfigError, match=r'a fit of `ddpsched fit`.*cost.kind = "affine_quadratic"'):
        Calibration.load(path)
    with pytest.raises(ConfigError, match="version = 2, this ddpsched reads 1"):
        Calibration.load(rewritten(path, calibration, version=2))
    with pytest.raises(ConfigError, match="version = True, this ddpsched reads 1"):
        Calibration.load(rewritten(path, calibration, version=True))
    with pytest.raises(ConfigError, match="unheard_of"):
        Calibration.load(rewritten(path, calibration, unheard_of=1))
    seconds = calibration.seconds.model_dump()
    for wrong in (-1.0, float("nan"), "0.1", None):
        with pytest.raises(ConfigError, match=r"seconds\.beta"):
            Calibration.load(rewritten(path, calibration, seconds=seconds | {"beta": wrong}))


def test_too_few_points() -> None:
    with pytest.raises(DataError, match=r"5 measured points.*raise global_batch"):
        fit_calibration([p for p in measured() if not p.held_out][:5], IDENTITY, {})
    with pytest.raises(DataError, match="must be finite and at least 1e-09"):
        fit_time([1] * 6, [1] * 6, [1, 1, 1, 1, 1, 0])


def test_a_slow_rank_is_seen_within_three_steps() -> None:
    speed = Speed()
    seen = []
    for _ in range(4):
        speed.add(10_000_000, 0.02)
        seen.append(speed.slowness_ppm)
    assert seen == [1_000_000, 1_000_000, 2_000_000, 2_000_000]
    for _ in range(3):
        speed.add(10_000_000, 0.01)
    assert speed.slowness_ppm == 1_000_000, "and quick again"


@given(st.integers(0, 30), st.lists(st.floats(0.97, 1.03), min_size=31, max_size=31))
def test_one_odd_step_barely_moves_it(when: int, noise: list[float]) -> None:
    speed = Speed()
    for step, factor in enumerate(noise):
        speed.add(10_000_000, 0.01 * (10 if step == when else factor))
        assert 970_000 <= speed.slowness_ppm <= 1_030_000


def test_steps_that_say_nothing_leave_the_speed() -> None:
    speed = Speed()
    for predicted, seconds in ((0, 0.1), (10, 0.0), (10, -1.0), (10, float("nan")), (10, float("inf"))):
        for _ in range(5):
            speed.add(predicted, seconds)
    assert speed.slowness_ppm == 1_000_000
    assert isinstance(speed.slowness_ppm, int)


def test_a_calibration_is_read_without_torch() -> None:
    check = (
        "import ddpsched.costs.calibration, ddpsched.costs.fit_calibration, ddpsched.costs.rank_speed, sys\n"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", check], cwd=Path(__file__).parents[2]).returncode == 0


def test_the_file_is_json_that_a_reader_understands(calibration: Calibration, tmp_path: Path) -> None:
    write_json(tmp_path / "c.json", calibration.model_dump())
    values = json.loads((tmp_path / "c.json").read_text())
    assert values["kind"] == "calibration"
    assert set(values["seconds"]) == {"alpha", "beta", "gamma", "delta", "floor"}
    assert values["points"][0].keys() == {"count", "length", "held_out", "seconds", "peak_bytes"}
