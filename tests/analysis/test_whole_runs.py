"""Runs whose records are not whole, and runs of data that changed under their path, are not used unsaid."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest
from runs import config_of
from synthetic import write_run

from analysis.__main__ import main
from analysis.compare_runs import compared
from analysis.load import load_run, load_study
from analysis.settings import settings
from ddpsched.config import parse
from ddpsched.errors import AGAIN, DataError
from ddpsched.run_folder import read_status
from ddpsched.run_loop import run


@pytest.mark.parametrize(
    ("kept", "says"), [(19, "step 9 has records of 1 of 2 ranks"), (10, "it has 5 of 10 steps"), (20, "")]
)
def test_records_that_end_early_are_left_out(tmp_path: Path, kept: int, says: str) -> None:
    study = tmp_path / "study"
    write_run(study, "static", steps=10)
    file = write_run(study, "balanced", steps=10) / "records.parquet"
    pd.read_parquet(file).sort_values(["step", "rank"]).iloc[:kept].to_parquet(file)
    left_out = load_study(study).left_out
    assert [says in why for why in left_out.values()] == [True] * bool(says)


def test_a_run_by_epochs_is_as_long_as_it_was_to_be(tmp_path: Path) -> None:
    """Its JSON lines stand in for lost records, and whole ones can be missing at the end of each rank's."""
    folder = write_run(tmp_path / "study", "static", steps=10)
    config = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(config.replace("steps = 10\n", "epochs = 2\n"))
    status = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps(status | {"total_steps": 11, "num_steps": 10}))
    records = pd.read_parquet(folder / "records.parquet")
    (folder / "records.parquet").unlink()
    for steps, says in ((10, None), (9, "it has 9 of 10 steps")):
        for rank, mine in records[records["step"] < steps].groupby("rank"):
            mine.to_json(folder / f"records-rank{rank}.jsonl", orient="records", lines=True)
        if says is None:
            assert load_run(folder).records["step"].nunique() == steps
        else:
            with pytest.raises(DataError, match=says):
                load_run(folder)


def test_a_run_of_fewer_steps_than_were_estimated_is_whole(tmp_path: Path) -> None:
    plain = config_of(tmp_path, "simulated", "static").model_dump(exclude={"steps"}, exclude_none=True)
    config = parse(plain | {"name": "fairseq", "policy": {"kind": "peer", "peer": "fairseq"}, "epochs": 1})
    run(config)
    status = read_status(config.run_dir)
    assert status["num_steps"] < status["total_steps"]
    assert load_run(config.run_dir).records["step"].nunique() == status["num_steps"]


@pytest.mark.parametrize(
    ("column", "says"),
    [
        ("loss_scale", "records lack loss_scale"),
        ("policy", "records lack policy"),
        ("step_s", "step_s is missing in 20 of 20 records"),
        ("compute_s", "compute_s is missing in 20 of 20 records"),
    ],
)
def test_records_of_an_old_schema_are_left_out(tmp_path: Path, column: str, says: str) -> None:
    study = tmp_path / "study"
    write_run(study, "static", steps=10)
    folder = write_run(study, "balanced", steps=10)
    records = pd.read_parquet(folder / "records.parquet")
    records.drop(columns=column).to_parquet(folder / "records.parquet")
    assert load_study(study).left_out == {folder.name: f"{folder / 'records.parquet'}: {says}; {AGAIN}"}
    records.drop(columns="steal_s").to_parquet(folder / "records.parquet")
    assert not load_study(study).left_out, "a column that not every record has"


def test_a_run_that_chose_its_policy_is_read(tmp_path: Path) -> None:
    """Its records are of the policy that it took."""
    study = tmp_path / "study"
    write_run(study, "static", steps=10)
    folder = write_run(study, "balanced", steps=10)
    config = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(config.replace('kind = "balanced"', 'kind = "auto"'))
    found = load_study(study)
    assert not found.left_out
    assert list(settings(found.runs)[0].arms) == ["static", "auto"]


def test_a_launch_is_one_observation(tmp_path: Path) -> None:
    """However many runs of an arm it has: two of one seed are not two launches, and its A/A stays what it is."""
    study = tmp_path / "study"
    for seed in (0, 1):
        write_run(study, "balanced", seed=seed)
        for name in ("one", "two"):
            write_run(study, "static", seed=seed, name=f"{name}-{seed}")
            write_run(study, "static", seed=seed, name=f"{name}-{seed}-aa", options={"aa": True})
    (table,) = compared(study)
    assert table["baseline"] == "static"
    assert {row["arm"]: row["num_launches"] for row in table["ratios"]} == {"A/A": 2, "balanced": 2}


def test_launches_of_one_seed_are_observations_each(tmp_path: Path) -> None:
    study = tmp_path / "study"
    for launch in ("first", "second"):
        about = {"launch": {"how": "interleaved", "id": launch, "margin": 0.02}}
        for policy in ("static", "balanced"):
            write_run(study, policy, name=f"{policy}-{launch}", environment=about)
        write_run(study, "static", name=f"static-{launch}-aa", options={"aa": True}, environment=about)
    (table,) = compared(study)
    assert {row["arm"]: row["num_launches"] for row in table["ratios"]} == {"A/A": 2, "balanced": 2}
    assert all(row["reason"] is None for row in table["ratios"])


def test_json_lines_stand_in_for_a_lost_parquet(tmp_path: Path) -> None:
    """A line that is cut off, of a run that was done, is named, and the run is left out."""
    study = tmp_path / "study"
    write_run(study, "static", steps=10)
    folder = write_run(study, "balanced", steps=10)
    before = load_run(folder).records
    (folder / "records.parquet").unlink()
    pd.testing.assert_frame_equal(load_run(folder).records, before)
    lines = folder / "records-rank1.jsonl"
    lines.write_bytes(lines.read_bytes()[:-5])
    fault = f"{lines}, line 10: it ends in the middle; {AGAIN}"
    assert load_study(study).left_out == {folder.name: fault}
    with pytest.raises(DataError, match=f"^{re.escape(fault)}$"):
        compared(folder)


def test_data_that_changed_is_another_setting(tmp_path: Path) -> None:
    study = tmp_path / "study"
    was, now = (
        write_run(study, arm, environment={"contents": {"data": f"file {digest}"}})
        for arm, digest in (("static", "ab"), ("balanced", "cd"))
    )
    labels = [setting.label for setting in settings(load_study(study).runs)]
    assert [label.rpartition(", ")[2] for label in labels] == ["content of data = file cd", "content of data = file ab"]
    with pytest.raises(
        DataError, match=r"content of data = .file cd. and .file ab.; not compared: run both with the same"
    ):
        compared(was, [now])


def test_simulated_runs_have_no_memory_to_draw(tmp_path: Path) -> None:
    study = tmp_path / "study"
    for arm in ("static", "balanced"):
        write_run(study, arm, mode="simulated", steps=10, drop=("peak_memory_bytes",))
    assert main([str(study)]) == 0
    assert (study / "figures" / "tables.json").exists()


def test_a_lone_run_has_nothing_to_be_compared_with(tmp_path: Path) -> None:
    run = write_run(tmp_path / "study", "static", steps=10)
    with pytest.raises(DataError, match="static is the only arm of its study; name a run to compare with"):
        compared(run)


def test_what_is_no_run_says_so(tmp_path: Path) -> None:
    write_run(tmp_path / "study", "static", steps=10)
    with pytest.raises(DataError, match=r"study: it has no status\.json; give a run's folder, outputs/STUDY/RUN"):
        load_run(tmp_path / "study")
    with pytest.raises(DataError, match="NOPE: there is no such folder; give a study's, outputs/STUDY"):
        load_study(tmp_path / "NOPE")


def test_a_run_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="NOPE: there is no such folder; give a run's, outputs/STUDY/RUN"):
        load_run(tmp_path / "NOPE")
