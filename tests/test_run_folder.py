"""A run's status: durations by a clock that is never set, and damaged files named in one sentence."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from runs import config_of, folder_of

from ddpsched import run_folder
from ddpsched.errors import DataError, RunExistsError, RunFinishedError
from ddpsched.run_folder import RunFolder, read_status
from ddpsched.run_lock import holder
from ddpsched.run_loop import run


class Clock(datetime):
    """A clock that can be set."""

    ahead = timedelta(0)

    @classmethod
    def now(cls, tz: Any = None) -> "datetime":
        return datetime.now(tz) + cls.ahead


@pytest.fixture(autouse=True)
def settable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "datetime", Clock)
    monkeypatch.setattr(Clock, "ahead", timedelta(0))


@pytest.mark.parametrize("hours", [-2, 2])
def test_a_clock_that_is_set_during_a_run(tmp_path: Path, hours: float) -> None:
    Clock.ahead = timedelta(hours=-hours)  # wrong until it is set
    folder = folder_of(config_of(tmp_path, "simulated"))
    with folder.held(is_main=True):
        folder.begin({})
        Clock.ahead = timedelta(0)
        folder.failed("cause")
    status = read_status(folder.path)
    began, ended = (datetime.fromisoformat(status[key]) for key in ("started", "finished"))
    assert 0 <= status["wall_s"] < 60
    assert abs((ended - began).total_seconds() - status["wall_s"]) < 0.01
    assert abs((datetime.now(UTC) - ended).total_seconds()) < 60


@pytest.mark.parametrize("hours", [-2, 2])
def test_the_first_reason_stands_though_the_clock_is_set(tmp_path: Path, hours: float) -> None:
    """Ranks that have not met rank 0, and so know no attempt, compare their starts."""
    config = config_of(tmp_path, "simulated")
    first, second = folder_of(config), folder_of(config)
    first.failed("cause")
    Clock.ahead = timedelta(hours=hours)
    second.failed("echo")
    assert read_status(config.run_dir)["reason"] == "cause"


@pytest.mark.parametrize("hours", [-2, 2])
def test_an_earlier_failure_is_replaced_though_the_clock_is_set(
    tmp_path: Path, hours: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tmp_path, "simulated")
    folder_of(config).failed("of an earlier launch at the same address")
    Clock.ahead = timedelta(hours=hours)
    monkeypatch.setattr(run_folder, "START_SKEW_S", -1e-9)
    folder_of(config).failed("new")
    assert read_status(config.run_dir)["reason"] == "new"


@pytest.mark.parametrize("minutes", [1, -1])
def test_the_status_of_another_machine_is_compared_by_its_date(tmp_path: Path, minutes: float) -> None:
    config = config_of(tmp_path, "simulated")
    first = folder_of(config)
    first._boot = "of another machine"
    Clock.ahead = timedelta(minutes=minutes)
    first.failed("cause")
    Clock.ahead = timedelta(0)
    folder_of(config).failed("echo")
    assert read_status(config.run_dir)["reason"] == ("cause" if minutes > 0 else "echo")


DAMAGED = {
    "empty": b"",
    "cut": b'{"state": "do',
    "a list": b"[]",
    "null": b"null",
    "binary": b"\xff\xfe\0\0",
    "no state": b"{}",
    "another state": b'{"state": "over"}',
    "a state of another type": b'{"state": ["done"]}',
    "a time of another type": b'{"state": "failed", "finished": 3}',
    "NaN": b'{"state": "done", "wall_s": NaN}',
    "nested": b"[" * 100_000,
    "digits": b'{"state": "done", "wall_s": ' + b"1" * 5000 + b"}",
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_status(tmp_path: Path, text: bytes) -> None:
    config = config_of(tmp_path, "simulated")
    run(config)
    before = {path.name: path.read_bytes() for path in config.run_dir.iterdir() if path.is_file()}
    status = config.run_dir / "status.json"
    status.write_bytes(text)
    for read in (read_status, lambda path: run(config), lambda path: folder_of(config)):
        with pytest.raises(
            DataError, match=r"status\.json: cannot be read as the status of a run \(.*--overwrite"
        ) as fault:
            read(config.run_dir)
        assert len(str(fault.value)) < 600
    after = {path.name: path.read_bytes() for path in config.run_dir.iterdir() if path.is_file()}
    assert after == before | {"status.json": text}
    run(config, overwrite=True)
    assert read_status(config.run_dir)["state"] == "done"


def test_a_status_that_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "status.json").mkdir()
    with pytest.raises(DataError, match=r"status\.json: cannot be read .*directory"):
        read_status(tmp_path)


def test_a_damaged_status_ends_a_sweep_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from experiments.sweep import sweep

    study = tmp_path / "small.toml"
    study.write_text('[base]\nsteps = 2\nexecutor.kind = "simulated"\n[grid]\nseed = [0]\n')
    folder = tmp_path / "outputs" / "small" / "seed0"
    folder.mkdir(parents=True)
    (folder / "status.json").write_text("{")
    with pytest.raises(DataError, match=r"status\.json: cannot be read"):
        sweep(str(study), [f"outputs={tmp_path / 'outputs'}"], pair=False)
    assert [path.name for path in folder.iterdir()] == ["status.json"]


def test_a_lock_that_is_no_lock_holds_nothing(tmp_path: Path) -> None:
    config = config_of(tmp_path, "simulated")
    for text in (b"[" * 100_000, b"\xff", b'{"launch": 1}', b"1" * 5000):
        config.run_dir.mkdir(parents=True, exist_ok=True)
        (config.run_dir / "lock").write_bytes(text)
        folder = RunFolder(config.run_dir, "", overwrite=True)
        with folder.held(is_main=True):
            pass


def test_a_lock_of_a_process_number_that_no_system_gives(tmp_path: Path) -> None:
    folder = folder_of(config_of(tmp_path, "simulated"))
    with folder.held(is_main=True):
        text = (folder.path / "lock").read_text()
        lock = json.loads(text)
        for pid in (10**30, "1", -1, 0, True, None):
            lock["place"]["process"]["pid"] = pid
            (folder.path / "lock").write_text(json.dumps(lock))
            assert holder(folder.path) is None
        (folder.path / "lock").write_text(text)
        assert holder(folder.path) is not None


def test_a_run_that_its_own_launch_has_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that joins late starts ranks once more; so does a rank that is lost at the end."""
    config = config_of(tmp_path, "simulated")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "launch-1")
    run(config)
    before = (config.run_dir / "status.json").read_bytes()
    assert run(config) == config.run_dir
    assert (config.run_dir / "status.json").read_bytes() == before, "nothing is written anew"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "launch-2")
    with pytest.raises(RunExistsError, match="holds a finished run"):
        run(config)
    run(config, overwrite=True)
    assert read_status(config.run_dir)["launcher"] == "launch-2"


@pytest.mark.parametrize("launcher", [None, "none"])
def test_launches_without_an_id_are_not_taken_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: str | None
) -> None:
    if launcher is None:
        monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    else:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", launcher)
    config = config_of(tmp_path, "simulated")
    run(config)
    with pytest.raises(RunExistsError, match="holds a finished run"):
        run(config)


def test_a_rank_that_waits_for_rank_0_sees_that_the_run_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 has seen it under the lock, and left."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "launch-1")
    config = config_of(tmp_path, "simulated")
    waiting = folder_of(config)
    run(config)
    with pytest.raises(RunFinishedError):
        waiting.lock.await_rank_0(5.0, waiting.refuse_finished)
