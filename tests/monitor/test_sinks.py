"""Sinks of a run's numbers: what they get, and that none can stop a run in its middle."""

import errno
import json
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from made_runs import damaged
from ranks import run_ranks
from runs import config_of, records_of

from analysis.settings import work
from ddpsched.config import RunConfig
from ddpsched.errors import ConfigError
from ddpsched.interleaved import run_interleaved
from ddpsched.monitor import follower
from ddpsched.monitor.sending import Sending
from ddpsched.run_folder import RunFolder, read_status
from ddpsched.run_loop import run

# of the family: it writes what it is called with into a file, and fails where it is told to
PACKAGE = """
import json, os
calls = os.environ["CALLS"]
def _note(*call):
    with open(calls, "a") as file:
        file.write(json.dumps(call) + "\\n")
def init(project, name=None, config=None, resume="never"):
    if os.environ.get("FAIL") == "init":
        raise ValueError("no login")
    _note("init", project, name, config["steps"], resume)
def log(metrics, step=None):
    if os.environ.get("FAIL") == "log" and step == 2:
        raise OSError("no route to host")
    _note("log", step, metrics)
def finish():
    _note("finish")
    if os.environ.get("FAIL") == "finish":
        raise RuntimeError("not uploaded")
"""
EVENTS = """
import json, os
class Writer:
    def __init__(self, folder):
        os.makedirs(folder)
        self.file = open(os.path.join(folder, "events"), "w")
    def add_scalar(self, name, value, step):
        self.file.write(json.dumps([name, value, step]) + "\\n")
    def flush(self):
        self.file.flush()
    def close(self):
        self.file.close()
"""
Calls = Callable[[], list[list[Any]]]


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Put packages called trackio and tensorboard on the path; return a function that reads trackio's calls."""
    packages, noted = tmp_path / "packages", tmp_path / "calls"
    (packages / "tensorboard").mkdir(parents=True)
    (packages / "trackio.py").write_text(PACKAGE)
    (packages / "tensorboard" / "__init__.py").write_text("")
    (packages / "tensorboard" / "summary.py").write_text(EVENTS)
    monkeypatch.syspath_prepend(packages)
    monkeypatch.setenv("PYTHONPATH", str(packages), prepend=":")  # of ranks
    monkeypatch.setenv("CALLS", str(noted))
    for name in ("trackio", "tensorboard", "tensorboard.summary"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return lambda: [json.loads(line) for line in noted.read_text().splitlines()] if noted.exists() else []


def sinks_of(folder: Path) -> Any:
    return json.loads((folder / "status.json").read_text())["sinks"]


def test_each_step_is_sent_once(tmp_path: Path, calls: Calls) -> None:
    config = config_of(tmp_path, "simulated", "static", steps=5, log={"sinks": ["trackio", "tensorboard"]})
    folder = run(config)
    first, *logged, last = calls()
    assert first == ["init", "runs", "static-simulated", 5, "never"]
    assert [step for _, step, _ in logged] == [0, 1, 2, 3, 4]
    assert last == ["finish"]
    for _, step, values in logged:
        rows = records_of(folder)[lambda table, step=step: table["step"] == step]
        assert values == {
            "step_s": pytest.approx(rows["step_s"].max()),
            "max_over_mean_compute": pytest.approx(rows["compute_s"].max() / rows["compute_s"].mean()),
            "padding_share": pytest.approx(1 - rows["num_tokens"].sum() / rows["padded_tokens"].sum()),
            "waiting_share": pytest.approx(rows["wait_s"].sum() / rows["step_s"].sum()),
            "global_batch": 12,
        }
    events = [json.loads(line) for line in (folder / "tensorboard" / "events").read_text().splitlines()]
    assert [event for event in events if event[0] == "step_s"] == [
        ["step_s", values["step_s"], step] for _, step, values in logged
    ]
    assert sinks_of(folder) == {"trackio": "closed", "tensorboard": "closed"}


class Kept:
    """A sink that keeps the numbers of the steps it gets."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.steps.append(step)

    def close(self, failed: bool) -> None: ...


def test_records_behind_many_damaged_lines_are_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "MOST_AT_ONCE", 1000)
    folder, sink = damaged(tmp_path / "run", lines=1000, steps=5), Kept()
    Sending({"kept": sink}, folder, by_tokens=False, tell=lambda states: None).look(always=True)
    assert sink.steps == [0, 1, 2, 3, 4]


def test_rank_0_sends_the_numbers_of_all_ranks(tmp_path: Path, calls: Calls) -> None:
    config = config_of(tmp_path, "distributed", "static", steps=3, log={"sinks": ["trackio"]})
    run_ranks(run, 2, config)
    first, *logged, last = calls()
    assert (first[0], last[0]) == ("init", "finish")
    table = records_of(config.run_dir)
    for _, step, values in logged:
        rows = table[table["step"] == step]
        assert values["max_over_mean_compute"] == pytest.approx(rows["compute_s"].max() / rows["compute_s"].mean())
        assert values["loss"] == pytest.approx((rows["loss"] * rows["num_samples"]).sum() / 12)
        assert values["lr"] == rows["lr"].iloc[0]
    assert [step for _, step, _ in logged] == [0, 1, 2]


@pytest.mark.parametrize(
    ("fails", "logged", "state"),
    [
        ("log", [0, 1], "left out from step 2 on: OSError: no route to host"),
        ("finish", [0, 1, 2, 3], "may lack the last steps: RuntimeError: not uploaded"),
    ],
)
def test_one_that_fails_is_named_once_and_left_out(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch, fails: str, logged: list[int], state: str
) -> None:
    monkeypatch.setenv("FAIL", fails)
    config = config_of(tmp_path, "simulated", "static", log={"sinks": ["trackio", "tensorboard"]})
    folder = run(config)
    assert read_status(folder)["state"] == "done"
    assert len(records_of(folder)) == 8
    assert [call[1] for call in calls() if call[0] == "log"] == logged
    assert sinks_of(folder) == {"trackio": state, "tensorboard": "closed"}
    text = (folder / "logs" / "rank0.log").read_text()
    assert text.count("log.sinks: trackio") == 1


def test_a_full_disk_takes_no_part_of_training(tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of a sink that failed cannot be written; the run is done all the same."""

    def full(folder: RunFolder, states: dict[str, str]) -> None:
        if any(state.startswith("left out") for state in states.values()):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setenv("FAIL", "log")
    monkeypatch.setattr(RunFolder, "note_sinks", full)
    folder = run(config_of(tmp_path, "simulated", "static", log={"sinks": ["trackio"]}))
    assert read_status(folder)["state"] == "done"
    assert "status.json could not be written" in (folder / "logs" / "rank0.log").read_text()


def test_one_that_cannot_begin_is_an_error_before_an_earlier_run_is_given_up(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tmp_path, "simulated", "static", log={"sinks": ["tensorboard", "trackio"]})
    run(config)
    monkeypatch.setenv("FAIL", "init")
    with pytest.raises(ConfigError, match=r"log.sinks: 'trackio' cannot begin \(ValueError: no login\); correct that"):
        run(config, overwrite=True)
    assert read_status(config.run_dir)["state"] == "done"


def test_a_missing_package_is_named_before_anything_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wandb").mkdir()  # as wandb makes one, which is no package
    monkeypatch.syspath_prepend(tmp_path)
    names = ("wandb", "trackio", "tensorboard")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
        if (spec := find_spec(name)) is not None and spec.origin is not None:
            pytest.skip(f"{name} is installed here, so there is no missing package to name")
    for name in names:
        config = config_of(tmp_path, "simulated", log={"sinks": [name]})
        with pytest.raises(ConfigError, match=f"log.sinks names '{name}', which is not installed: pip install {name}"):
            run(config)
        assert not config.run_dir.exists()


def test_a_failed_run_finishes_its_sinks(tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    from ddpsched.simulated import SimulatedExecutor

    execute = SimulatedExecutor.execute

    def fail(executor: Any, plan: Any) -> Any:
        if plan.step == 2:
            raise ArithmeticError("planted")
        return execute(executor, plan)

    monkeypatch.setattr(SimulatedExecutor, "execute", fail)
    config = config_of(tmp_path, "simulated", "static", log={"sinks": ["trackio"]})
    with pytest.raises(ArithmeticError):
        run(config)
    assert [call[0] for call in calls()] == ["init", "log", "log", "finish"]
    status = read_status(config.run_dir)
    assert (status["state"], status["sinks"], status["total_steps"]) == ("failed", {"trackio": "closed"}, 4)


def test_a_run_that_goes_on_resumes_there_and_sends_no_step_again(tmp_path: Path, calls: Calls) -> None:
    from ddpsched.training.virtual import VirtualExecutor

    execute = VirtualExecutor.execute

    def fail(executor: Any, plan: Any) -> Any:
        if plan.step == 3:
            raise ArithmeticError("planted")
        return execute(executor, plan)

    def sending_to(*names: str) -> RunConfig:
        return config_of(tmp_path, "virtual", "static", train={"checkpoint_every": 2}, log={"sinks": [*names]})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VirtualExecutor, "execute", fail)
        with pytest.raises(ArithmeticError):
            run(sending_to("trackio"))
    before = len(calls())
    folder = run(sending_to("tensorboard", "trackio"))  # which do not decide what is trained
    again = calls()[before:]
    assert again[0][-1] == "allow"
    assert [call[1] for call in again if call[0] == "log"] == [2, 3]
    assert sinks_of(folder) == {"tensorboard": "closed", "trackio": "closed"}


def test_runs_that_take_turns_share_no_package_that_has_one_run(tmp_path: Path) -> None:
    configs = [config_of(tmp_path, policy=policy, log={"sinks": ["wandb"]}) for policy in ("static", "balanced")]
    with pytest.raises(ConfigError, match=r"log.sinks = \['wandb'\]: these log one run of a process at a time"):
        run_interleaved(configs)


def test_runs_with_other_sinks_did_the_same_work() -> None:
    plain, sent = (config_of(Path(), log={"sinks": sinks}).model_dump() for sinks in ([], ["wandb"]))
    assert work(plain) == work(sent)


def test_a_sink_is_named_once_and_is_one_of_three() -> None:
    with pytest.raises(ConfigError, match="names a sink twice; leave one out"):
        config_of(Path(), log={"sinks": ["wandb", "wandb"]})
    with pytest.raises(ConfigError, match="'tensorboard', 'wandb' or 'trackio'"):
        config_of(Path(), log={"sinks": ["mlflow"]})
