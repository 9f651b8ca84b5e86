"""Measured times of a model: as a row that ranks exchange, and kept for later runs."""

from pathlib import Path

import numpy as np
import pytest

from ddpsched.costs.calibration import Identity, Seconds
from ddpsched.costs.step_times import KEPT, Curve, StepTimes, Tried, keep, kept_in, load_kept

IDENTITY = Identity(model="tiny", parameters=7, precision="float32", threads=1, max_length=128)
PADDED = Seconds(alpha=1e-3, beta=1e-5, gamma=1e-9, delta=1e-4, floor=0.0)


def times(packed: bool = True, **more: float) -> StepTimes:
    values = {
        "identity": IDENTITY, "world_size": 2, "padded": PADDED,
        "packed": Seconds(alpha=2e-3, beta=2e-5, gamma=0.0, delta=0.0, floor=1e-3) if packed else None,
        "padded_curve": Curve(least=10, most=900, ratios=[0.9, 1.2] * 4), "packed_curve": Curve(least=20, most=800),
        "rest_s": 0.01, "error": 0.02, "noise": [1 + place / 100 for place in range(10)],
    }  # fmt: skip
    return StepTimes.model_validate(values | more)


@pytest.mark.parametrize("packed", [True, False])
def test_a_row_carries_every_number(packed: bool) -> None:
    given, other = times(packed), times(rest_s=1.0, error=0.5)
    row = given.as_row()
    assert all(type(value) is int for value in row)
    assert other.with_row(row) == given
    tried = {"static": Tried(ratio=1.1, error=0.01), "packed": Tried(ratio=0.9, error=0.02)}
    given = given.model_copy(update={"tried": tried})
    names = ["static", "balanced", "packed"]  # of which one was not tried
    assert other.with_row(given.as_row(names), names) == given
    assert (given.packed_cost is None) == (not packed)
    assert given.cost.padded(3, 20) == round(1e9 * (1e-3 + 3 * (1e-4 + 20 * 1e-5 + 400 * 1e-9)))


def test_a_curve_goes_through_what_was_measured() -> None:
    tokens, ratios = np.array([10, 80, 80, 640, 640]), np.array([0.8, 0.9, 1.1, 1.4, 1.6])
    curve = Curve.of(tokens, ratios)
    assert curve.at(np.array([10, 640, 2, 10**6])) == pytest.approx([0.8, 1.5, 0.8, 1.5])
    assert curve.at(np.array([81])) == pytest.approx([1.0], abs=0.05)
    assert Curve.of(np.array([7, 7]), np.array([1.0, 3.0])).at(np.array([1, 7, 70])) == pytest.approx([2.0, 2.0, 2.0])


def test_a_candidate_that_was_not_tried_is_off_as_others_are() -> None:
    tried = {"static": Tried(ratio=1.1, error=0.01), "packed": Tried(ratio=0.9, error=0.02)}
    given = times().model_copy(update={"tried": tried})
    assert (given.off("packed"), given.off("balanced"), times().off("balanced")) == (0.9, 1.0, 1.0)
    assert StepTimes.model_validate_json(given.model_dump_json()) == given


def test_noise_tells_a_busy_device() -> None:
    assert times().spread == pytest.approx(0.045)
    assert not times().is_noisy
    assert times(noise=[1.0] * 3 + [1.4] * 7).is_noisy


def test_what_is_measured_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEPT, str(tmp_path / "kept"))
    path = kept_in(IDENTITY, 2, "virtual", ["3.11", "2.13"])
    assert path.is_relative_to(tmp_path / "kept")
    keep(path, times(noise=[1.0] * 3 + [1.4] * 7))  # a later run measures anew
    assert load_kept(path) is None
    keep(path, times())
    assert load_kept(path) == times()
    others = [
        kept_in(IDENTITY, 4, "virtual", ["3.11", "2.13"]), kept_in(IDENTITY, 2, "distributed", ["3.11", "2.13"]),
        kept_in(IDENTITY, 2, "virtual", ["3.11", "2.14"]),
        kept_in(IDENTITY.model_copy(update={"threads": 2}), 2, "virtual", ["3.11", "2.13"]),
    ]  # fmt: skip
    assert len({path, *others}) == 5
    for damaged in ("", "{", '{"kind": "step_times"}', path.read_text().replace("0.01", "-1")):
        path.write_text(damaged)
        assert load_kept(path) is None


def test_a_folder_that_cannot_be_written_costs_a_measurement_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    keep(tmp_path / "file" / "times.json", times())
    assert load_kept(tmp_path / "file" / "times.json") is None
