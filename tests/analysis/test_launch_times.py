"""Launches that ran at one time: whether times of their arms are compared."""

import json
from pathlib import Path

import pytest
from synthetic import SEEDS, write_run

from analysis.freeze import freeze, read_frozen
from analysis.launches import BESIDE, is_timed, most_at_once
from analysis.load import load_study
from analysis.ratios import judged
from analysis.settings import Setting, settings


def launched(study: Path, how: str, boots: tuple[str, ...], same_hour: bool = True) -> Path:
    """Write a launch for each seed, static for an hour and then balanced, all at one time or one after another."""
    for place, seed in enumerate(SEEDS):
        first = 0 if same_hour else 2 * place
        for turn, policy in enumerate(("static", "balanced"), first):
            launch = {"how": how, "id": f"launch {seed}", "margin": 0.02}
            run = write_run(study, policy, seed=seed, steps=20, environment={"launch": launch})
            began(run, turn, boots[place])
    return study


def began(run: Path, hour: int, boot: str) -> None:
    status = json.loads((run / "status.json").read_text())
    span = {"started": f"2026-01-01T0{hour}:00:00", "finished": f"2026-01-01T0{hour + 1}:00:00"}
    (run / "status.json").write_text(json.dumps(status | span | {"boot": boot}))


def setting_of(study: Path) -> Setting:
    (found,) = settings(load_study(study).runs)
    return found


HERE = ("here",) * 3


@pytest.mark.parametrize(
    ("how", "boots", "same_hour", "at_once"),
    [
        ("processes", HERE, True, 3),
        ("processes", ("a", "b", "a"), True, 2),
        ("processes", ("a", "b", "c"), True, 1),
        ("processes", HERE, False, 1),
        ("interleaved", HERE, True, 3),
    ],
)
def test_times_beside_other_launches_of_the_machine_have_no_interval(
    tmp_path: Path, how: str, boots: tuple[str, ...], same_hour: bool, at_once: int
) -> None:
    found = setting_of(launched(tmp_path / "m", how, boots, same_hour))
    assert most_at_once(found) == at_once
    (row,) = judged([found], "step_s")[0]
    compared = how == "interleaved" or at_once == 1
    assert (row["low"] is not None and row["low"] == row["low"]) == compared
    assert row["ratio"] > 0
    if compared:
        assert row["reason"] is None
    else:
        assert row["reason"] == BESIDE
        assert row["verdict"] == f"no interval: {BESIDE}"


def test_a_frozen_study_still_tells_machines_apart(tmp_path: Path) -> None:
    study = load_study(launched(tmp_path / "m", "processes", ("a", "b", "c")))
    freeze(study, tmp_path / "frozen")
    (found,) = settings(read_frozen(tmp_path / "frozen").runs)
    assert most_at_once(found) == 1


def test_launches_of_the_study_s_other_settings_ran_beside_these(tmp_path: Path) -> None:
    """And one seed whose arms took turns does not make up for others whose arms did not."""
    study = tmp_path / "m"
    for world_size in (2, 4):
        for turn, policy in enumerate(("static", "balanced")):
            launch = {"how": "processes", "id": f"launch {world_size}", "margin": 0.02}
            run = write_run(study, policy, world_size=world_size, steps=20, environment={"launch": launch})
            began(run, turn, "here")
    assert [most_at_once(each) for each in settings(load_study(study).runs)] == [2, 2]
    assert [is_timed(each) for each in settings(load_study(study).runs)] == [False, False]
    mixed = launched(tmp_path / "n", "processes", HERE)
    for policy in ("static", "balanced"):
        environment = mixed / f"{policy}-distributed-g2-s0" / "environment.json"
        environment.write_text(environment.read_text().replace('"processes"', '"interleaved"'))
    assert not is_timed(setting_of(mixed))


def test_launches_of_other_hours_are_no_neighbours(tmp_path: Path) -> None:
    """Two others at one time, when this setting's had ended; and a run of no launch changes nothing."""
    study = tmp_path / "m"
    for world_size, seed, hour in ((2, 0, 0), (4, 0, 4), (4, 1, 4)):
        for turn, policy in enumerate(("static", "balanced"), hour):
            launch = {"how": "processes", "id": f"launch {world_size} {seed}", "margin": 0.02}
            run = write_run(study, policy, seed, world_size=world_size, steps=20, environment={"launch": launch})
            began(run, turn, "here")
    two, four = settings(load_study(study).runs)
    assert [(most_at_once(each), is_timed(each)) for each in (two, four)] == [(1, True), (2, False)]
    turns = launched(tmp_path / "n", "interleaved", HERE)
    write_run(turns, "static", steps=20, name="alone", environment={"launch": None})
    assert is_timed(setting_of(turns))
