"""Times that policy auto measures: in about a minute whatever the model takes, unless a calibration is given."""

from pathlib import Path
from typing import Any

import pytest
from auto_runs import chosen, config_of

from ddpsched.advise import choice
from ddpsched.errors import ConfigError
from ddpsched.records import read_json
from ddpsched.run_loop import run
from ddpsched.training import trial_steps, trial_times
from ddpsched.training.calibrate import calibrate_to

pytestmark = pytest.mark.usefixtures("kept")  # each test measures for itself


@pytest.mark.parametrize(("largest_s", "points"), [(0.3, 24), (2.0, 12), (10.0, 9)])
def test_a_slow_model_is_measured_in_about_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, largest_s: float, points: int
) -> None:
    """Times are as if the largest micro-batches, of 630 tokens or more, took ``largest_s``."""
    now, seen = [0.0], set[Any]()

    def seconds(learner: Any, point: trial_times.Point) -> float:
        count, length, ids = point
        tokens = count * length if ids is None else int(learner.lengths(ids).sum())
        seen.add((count, length) if ids is None else tuple(ids.tolist()))
        return passed(tokens)

    def passed(tokens: int) -> float:
        took = largest_s * min(1.0, 0.1 + tokens / 700) * (1 + 0.1 * (len(now) % 3))
        now.append(now[-1] + took)
        return took

    monkeypatch.setattr(trial_times, "_seconds", seconds)
    monkeypatch.setattr(trial_steps, "seconds_of", lambda _, collate: passed(collate().inputs["input_ids"].numel()))
    for module in (trial_times, trial_steps, choice):
        monkeypatch.setattr(module, "perf_counter", lambda: now[-1])
    found = chosen(run(config_of(tmp_path, global_batch=32, data={"size": 400})))["times"]
    assert now[-1] < 60
    assert found["noise"][-1] > 1.05, "where there was one pass alone, too"
    assert len(seen) <= points


def calibrated(folder: Path, **more: Any) -> Path:
    """Return the file of a hasty calibration."""
    file = folder / "device.json"
    calibrate_to(file, config_of(folder, **{**more, "policy": {"kind": "static"}}), passes=1)
    return file


@pytest.mark.usefixtures("brief")
def test_a_calibration_that_is_given_counts(tmp_path: Path) -> None:
    file = calibrated(tmp_path)
    folder = run(config_of(tmp_path, cost={"kind": "calibrated", "path": str(file)}))
    assert chosen(folder)["times"]["padded"] == read_json(file)["seconds"]


@pytest.mark.usefixtures("brief")
def test_a_stale_calibration_is_refused_and_measured_anew_by_force(tmp_path: Path) -> None:
    """It is of shorter samples; with ``force`` none of its times count."""
    file = calibrated(tmp_path, data={"size": 64, "max_length": 40})
    config = config_of(tmp_path, cost={"kind": "calibrated", "path": str(file)})
    with pytest.raises(ConfigError, match=r"They differ: samples of up.*pass --force"):
        run(config)
    assert not (config.run_dir / "environment.json").exists()
    times = chosen(run(config, force=True))["times"]
    assert times["identity"]["max_length"] == config.data.max_length
    assert times["padded"] != read_json(file)["seconds"]
