"""Which runs start together: all arms of a setting and seed, the baseline twice; and a sweep that starts them."""

import json
from pathlib import Path
from typing import Any

import pytest
from studies import write_study

from analysis.load import load_study as load_finished
from ddpsched.errors import ConfigError, DataError
from ddpsched.run_folder import read_status
from experiments import finished
from experiments.interleaved import configs_of
from experiments.interleaved import main as interleaved
from experiments.launches import launches
from experiments.launching import command, config_path
from experiments.study import load_study
from experiments.sweep import sweep

STUDY = """
[base]
steps = 3
global_batch = 8
world_size = 2
data = { size = 50 }
[grid]
"policy.kind" = ["static", "packed"]
seed = [0, 1]
setting = [
    { name = "g2", "executor.kind" = "virtual" },
    { name = "paper", "executor.kind" = "simulated" },
]
"""


def names(study: Path, *words: str) -> list[tuple[str, list[str]]]:
    return [(each.how, [run.name for run in each.runs]) for each in launches(load_study(study, words))]


def test_arms_of_a_setting_and_seed_start_together_with_the_baseline_twice(tmp_path: Path) -> None:
    study = write_study(tmp_path, STUDY)
    assert names(study, "setting=g2") == [
        ("interleaved", [f"static-seed{seed}-g2", f"static-seed{seed}-g2-aa", f"packed-seed{seed}-g2"])
        for seed in (0, 1)
    ]
    apart = [("apart", [f"{kind}-seed{seed}-paper"]) for seed in (0, 1) for kind in ("static", "packed")]
    assert names(study, "setting=paper") == apart, "times that are computed need no second run"
    aa = [run for run in load_study(study).runs if run.aa]
    assert len(aa) == 2
    assert all(run.policy.kind == "static" for run in aa)


def test_a_finished_run_whose_environment_is_damaged_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch, *_ = launches(load_study(write_study(tmp_path, STUDY), [f"outputs={tmp_path}", "setting=g2"]))
    monkeypatch.setattr(finished, "_is_finished", lambda run: True)
    for run in launch.runs:
        run.run_dir.mkdir(parents=True)
        (run.run_dir / "environment.json").write_text("{")
    remedy = rf"remove the run \(ddpsched runs rm {launch.runs[0].run_dir}\), and run it again"
    with pytest.raises(DataError, match=rf"environment.json cannot be read: it is no JSON .*; {remedy}"):
        finished.is_done(launch)


def test_another_arm_may_be_the_baseline(tmp_path: Path) -> None:
    study = write_study(tmp_path, STUDY)
    (found, _) = names(study, "setting=g2", "compare.baseline=packed")
    assert found == ("interleaved", ["static-seed0-g2", "packed-seed0-g2", "packed-seed0-g2-aa"])


def test_apart_there_is_no_second_run(tmp_path: Path) -> None:
    study = write_study(tmp_path, STUDY)
    assert names(study, "setting=g2", "seed=0", "compare.how=apart") == [
        ("apart", ["static-seed0-g2"]), ("apart", ["packed-seed0-g2"]),
    ]  # fmt: skip


@pytest.mark.parametrize("kinds", [["static", "packed"], ["static", "packed", "balanced"]], ids=len)
def test_processes_run_backwards_with_every_second_seed(tmp_path: Path, kinds: list[str]) -> None:
    """Also where the runs of a seed are an even number."""
    text = STUDY.replace('["static", "packed"]', json.dumps(kinds)).replace("seed = [0, 1]", "seed = [0, 1, 2, 3]")
    study = write_study(tmp_path, text)
    found = launches(load_study(study, ["setting=g2", "compare.how=processes"]))
    arms = [[run.name.replace(f"-seed{run.seed}", "") for run in each.runs] for each in found]
    assert arms[1] == arms[0][::-1]
    assert arms[3] == arms[2][::-1]
    assert sorted(arms[0]) == sorted([*(f"{kind}-g2" for kind in kinds), "static-g2-aa"])
    processes = found[0].processes()
    facts = []
    for each in processes:
        (word,) = (word for word in command(each, [Path("x")]) if word.startswith("--launch="))
        facts.append(json.loads(word.partition("=")[2]))
    assert all(each == facts[0] for each in facts), "they are parts of one launch"
    assert sorted(facts[0]["runs"]) == sorted(run.name for run in found[0].runs)
    assert found[0].processes()[0].id != processes[0].id, "another time is another launch"


def test_steps_of_a_turn_reach_the_command(tmp_path: Path) -> None:
    study = write_study(tmp_path, STUDY)
    (found, *_) = launches(load_study(study, ["setting=g2", "compare.block=3"]))
    words = command(found, [Path("x")])
    assert words[words.index("--block") + 1] == "3"


@pytest.mark.slow
def test_processes_of_a_launch_all_run_again_where_one_has_to(tmp_path: Path) -> None:
    study = str(write_study(tmp_path, STUDY))
    words = [f"outputs={tmp_path}", "setting=g2", "seed=0", "policy.kind=static", "compare.how=processes"]
    assert sweep(study, words) == 0
    folders = sorted(path for path in (tmp_path / "small").iterdir() if path.is_dir() and path.name != "figures")

    def ids() -> set[str]:
        return {json.loads((folder / "environment.json").read_text())["launch"]["id"] for folder in folders}

    first = ids()
    assert len(first) == 1
    status = folders[0] / "status.json"
    status.write_text(json.dumps({**json.loads(status.read_text()), "state": "failed"}))
    assert sweep(study, words) == 0
    assert len(ids()) == 1
    assert ids() != first


def test_one_run_alone_is_compared_with_nothing(tmp_path: Path) -> None:
    study = write_study(tmp_path, STUDY)
    assert names(study, "setting=g2", "policy.kind=packed", "seed=0") == [("apart", ["packed-seed0-g2"])]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compare.baseline=minmax"], "static-seed0-g2, packed-seed0-g2 none is the baseline.*baseline = 'minmax'"),
        (["compare.how=sideways"], r"\[compare\]: how = 'sideways'"),
        (["compare.block=0"], r"\[compare\]: block = 0"),
        (["compare.margin=2"], r"\[compare\]: margin = 2"),
        (["compare.blocks=2"], r"\[compare\]: .*blocks"),
    ],
)  # fmt: skip
def test_a_study_that_cannot_compare_is_refused(tmp_path: Path, words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        launches(load_study(write_study(tmp_path, STUDY), words))


@pytest.mark.slow
def test_a_sweep_runs_them_in_turn_and_only_once(tmp_path: Path, capsys: Any) -> None:
    study = str(write_study(tmp_path, STUDY))
    words = [f"outputs={tmp_path}", "setting=g2", "seed=0"]
    assert sweep(study, words, dry_run=True) == 0
    assert "experiments.interleaved" in capsys.readouterr().out
    assert not list(tmp_path.glob("small/*"))
    assert sweep(study, words) == 0
    assert "static-seed0-g2 and 2 more in turn" in capsys.readouterr().out
    facts = [run.environment["launch"] for run in load_finished(tmp_path / "small").runs]
    assert len(facts) == 3
    assert all(each == facts[0] for each in facts)
    assert (facts[0]["how"], facts[0]["margin"], len(facts[0]["runs"])) == ("interleaved", 0.02, 3)
    assert sweep(study, words) == 0
    assert "skip" in capsys.readouterr().out
    assert not list(tmp_path.glob("small/.*")), "configs and logs beside the folders are gone"
    status = tmp_path / "small" / "packed-seed0-g2" / "status.json"
    status.write_text(json.dumps({**json.loads(status.read_text()), "state": "failed"}))
    assert sweep(study, words) == 0
    assert len({run.environment["launch"]["id"] for run in load_finished(tmp_path / "small").runs}) == 1, "all again"
    facts = status.with_name("environment.json")
    other = json.loads(facts.read_text())
    facts.write_text(json.dumps({**other, "launch": {**other["launch"], "id": "another launch"}}))
    assert sweep(study, [*words, "compare.block=2"]) == 0
    facts = [run.environment["launch"] for run in load_finished(tmp_path / "small").runs]
    assert len({each["id"] for each in facts}) == 1, "runs of two launches are not taken for one that is finished"
    assert {each["block"] for each in facts} == {2}


@pytest.mark.slow
def test_a_sweep_reports_an_arm_that_fails_and_finishes_the_others(tmp_path: Path, capsys: Any) -> None:
    lost = '{ name = "lost", "policy.kind" = "peer", "policy.peer" = "nobody" }'
    arms = f'arm = [{{ name = "static", "policy.kind" = "static" }}, {lost}]'
    study = str(write_study(tmp_path, STUDY.replace('"policy.kind" = ["static", "packed"]', arms)))
    assert sweep(study, [f"outputs={tmp_path}", "setting=g2", "seed=0"]) == 1
    said = capsys.readouterr().out
    assert "1 of 3 runs failed" in said
    assert "policy.peer = 'nobody' is none of" in said
    states = {name: read_status(tmp_path / "small" / f"{name}-g2")["state"] for name in ("static-seed0", "lost-seed0")}
    assert states == {"static-seed0": "done", "lost-seed0": "absent"}


def test_the_rank_program_takes_a_study_of_one_launch(tmp_path: Path, capsys: Any) -> None:
    study = str(write_study(tmp_path, STUDY))
    with pytest.raises(ConfigError, match=r"2 settings and seeds to start .*seed0.*seed1.*experiments.sweep"):
        configs_of([study, "setting=g2"])
    configs, about = configs_of([study, "setting=g2", "seed=1"])
    assert len(configs) == len(about["runs"]) == 3
    assert about["margin"] == 0.02
    assert interleaved([]) == 2
    assert interleaved([study, "setting=g2", "seed=1", "--block", "two"]) == 1
    assert "--block two: give a whole number" in capsys.readouterr().err
    assert interleaved([study, "setting=g2", "seed=1", f"outputs={tmp_path}", "--block", "2"]) == 0
    assert capsys.readouterr().out.count("done: ") == 3


def test_configs_of_a_launch_have_names_of_this_process(tmp_path: Path) -> None:
    run = load_study(write_study(tmp_path, STUDY)).runs[0]
    assert config_path(run).name.startswith(f".{run.name}.")


def test_a_seed_may_have_its_own_number_of_steps(tmp_path: Path) -> None:
    study = write_study(tmp_path, STUDY.replace("seed = [0, 1]", 'launch = [{ name = "s0", seed = 0, steps = 9 }, '
                                                '{ name = "s1", seed = 1, steps = 3 }]'))  # fmt: skip
    found = launches(load_study(study, ["setting=g2"]))
    assert [{run.steps for run in each.runs} for each in found] == [{9}, {3}]
    assert [len(each.runs) for each in found] == [3, 3]
