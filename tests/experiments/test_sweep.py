"""Sweeps run what is not finished, report what failed, and survive Ctrl-C; ranks that die are named."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pandas as pd
import pytest
from studies import write_study

from analysis.load import load_study as load_runs
from ddpsched.errors import RunExistsError
from ddpsched.monitor.found import find_runs
from ddpsched.run_folder import read_status
from ddpsched.run_lock import RunLock, refusal
from experiments.study import load_study
from experiments.sweep import _run_here, sweep

ROOT = Path(__file__).parents[2]


def test_finished_runs_are_skipped_and_failed_ones_reported(tmp_path: Path, capsys: Any) -> None:
    study = write_study(tmp_path)
    words = [f"outputs={tmp_path}", "seed=0"]
    assert sweep(str(study), words, dry_run=True) == 0
    assert not (tmp_path / "small").exists(), "a dry run writes nothing"
    assert sweep(str(study), [f"outputs={tmp_path}/a folder", "seed=0"], dry_run=True) == 0
    assert f" '{tmp_path}/a folder/small/" in capsys.readouterr().out, "its commands can be pasted"
    assert sweep(str(study), words) == 0
    first = (tmp_path / "small" / "minmax-seed0" / "records.parquet").stat().st_mtime_ns
    assert sweep(str(study), words) == 0
    assert (tmp_path / "small" / "minmax-seed0" / "records.parquet").stat().st_mtime_ns == first
    assert "skip" in capsys.readouterr().out
    assert sweep(str(study), [f"outputs={tmp_path}", "seed=1", "data.path=/nowhere.tsv"]) == 1
    said = capsys.readouterr().out
    assert "2 of 2 runs failed" in said
    assert "/nowhere.tsv" in said
    assert read_status(tmp_path / "small" / "static-seed1")["state"] == "absent", "it never began"
    runs, _ = find_runs(tmp_path)
    states = {run.name: (run.state, run.began) for run in runs}
    assert states["small/static-seed1"] == ("failed", False)
    assert states["small/static-seed0"] == ("done", True)
    left_out = load_runs(tmp_path / "small").left_out
    assert list(left_out) == ["minmax-seed1", "static-seed1"]
    assert "it never began: data.path = /nowhere.tsv: no such file" in left_out["static-seed1"]


def test_what_another_sweep_finishes_meanwhile_is_not_run_again(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, words = str(write_study(tmp_path)), [f"outputs={tmp_path}", "seed=0", "policy.kind=static"]
    assert sweep(study, words) == 0
    looks = iter([False, True])  # as this sweep begins, and as the launch's turn comes
    monkeypatch.setattr("experiments.sweep.is_done", lambda launch: next(looks))
    monkeypatch.setattr("experiments.sweep.run_launch", lambda *_: pytest.fail("run again"))
    assert sweep(study, words) == 0
    assert "(another sweep has finished it meanwhile)" in capsys.readouterr().out


@pytest.mark.parametrize(("steps", "left"), [((300, 60, 60), ("40", "18")), ((300, None, 60), ("200", "55"))])
def test_the_time_left_follows_the_steps_of_the_launches(
    steps: tuple[int | None, ...], left: tuple[str, str], capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first launch takes 100 minutes, the second 10; whole epochs are of no known length."""
    runs = [SimpleNamespace(steps=each, run_dir=f"outputs/study/run{place}") for place, each in enumerate(steps)]
    some = [SimpleNamespace(label="a launch", is_lone=False, runs=[run], processes=list) for run in runs]
    clock = iter([0.0, 6000.0, 6600.0])
    monkeypatch.setattr("experiments.sweep.time.monotonic", lambda: next(clock))
    assert len(list(_run_here(cast(Any, some), ["--overwrite"]))) == 3
    said = capsys.readouterr().out
    assert "(1 of 3)" in said
    assert said.count("ddpsched watch outputs/study/run0") == said.count("ddpsched watch") == 1
    assert all(f"({place} of 3, about {each} min left)" in said for place, each in zip((2, 3), left, strict=True))


def test_a_run_whose_folder_is_held_is_reported(tmp_path: Path, capsys: Any) -> None:
    """By the sweep's own look, and by the run's where another took the folder after that; nothing is touched."""
    study = str(write_study(tmp_path))
    words = [f"outputs={tmp_path}", "seed=0", "policy.kind=static"]
    run = load_study(Path(study), words).runs[0]
    lock = RunLock(run.run_dir)
    lock.take()
    before = sorted(tmp_path.rglob("*"))
    for look in (refusal, lambda folder: None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("experiments.launching.refusal", look)
            assert sweep(study, words) == 1
        said = capsys.readouterr().out
        assert f"static-seed0 is held by a run (process {os.getpid()}" in said
        assert sorted(tmp_path.rglob("*")) == before
    lock.give_back()
    assert sweep(study, words) == 0


def test_overwriting_with_a_mistake_loses_nothing(tmp_path: Path, capsys: Any) -> None:
    study, words = str(write_study(tmp_path)), [f"outputs={tmp_path}", "seed=0", "policy.kind=static"]
    assert sweep(study, words) == 0
    folder = tmp_path / "small" / "static-seed0"
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert sweep(study, [*words, "data.path=/nowhere.tsv"], overwrite=True) == 1
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    assert sweep(study, words, overwrite=True) == 0
    assert (folder / "status.json").read_bytes() != before["status.json"]


@pytest.mark.slow
def test_a_finished_run_of_another_config_is_not_taken_for_this_one(tmp_path: Path) -> None:
    study, words = str(write_study(tmp_path)), [f"outputs={tmp_path}", "seed=0"]
    assert sweep(study, words) == 0
    with pytest.raises(RunExistsError, match=r"static-seed0 holds a finished run of another config \(steps: 2 there"):
        sweep(study, [*words, "steps=5"])
    config = tmp_path / "small" / "static-seed0" / "config.toml"
    config.write_text(config.read_text().replace("[policy]", "[policy]\nprefetch = 16"))  # as earlier versions wrote it
    with pytest.raises(RunExistsError, match=r"config this version does not read .*prefetch belongs.*--overwrite"):
        sweep(study, words)
    assert sweep(study, [*words, "steps=5"], overwrite=True) == 0


# --- real processes ------------------------------------------------------------------------------------------


def launch(tmp_path: Path, *words: str, module: str = "experiments.sweep", **more: Any) -> "subprocess.Popen[str]":
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    STARTED.append(
        subprocess.Popen(
            [sys.executable, "-m", module, *words],
            cwd=ROOT,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            **more,
        )
    )
    return STARTED[-1]


STARTED: list["subprocess.Popen[str]"] = []


@pytest.fixture(autouse=True)
def end_what_a_failed_test_leaves() -> Iterator[None]:
    """Its ranks would go on for their 100,000 steps beside all other tests."""
    yield
    while STARTED:
        process = STARTED.pop()
        if process.poll() is None:
            process.terminate()
            process.wait(60)


def wait_for_steps(folder: Path, count: int, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    lines = folder / "records-rank0.jsonl"
    while not lines.exists() or lines.read_text().count("\n") < count:
        assert time.monotonic() < deadline, f"no steps in {folder}: {list(folder.rglob('*'))}"
        time.sleep(0.1)


LONG = """
[base]
steps = 100000
global_batch = 8
world_size = 2
executor = { kind = "distributed" }
data = { size = 50 }
[grid]
"policy.kind" = ["minmax"]
"""


def ranks_of(folder: Path) -> dict[int, int]:
    """Process ids of the ranks of a running run, by rank."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            environ = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        config = str(folder.with_name(f".{folder.name}.")).encode()  # and the sweep's process number
        if b"experiments.train" in words and any(word.startswith(config) for word in words):
            rank = next((v[5:] for v in environ if v.startswith(b"RANK=")), None)
            if rank is not None:
                found[int(rank)] = int(process.name)
    return found


@pytest.mark.parametrize(
    ("how", "sync"),
    [
        (signal.SIGKILL, "ddp"),
        *(pytest.param(signal.SIGSTOP, sync, marks=pytest.mark.slow) for sync in ("ddp", "bucketed")),
    ],
)
def test_a_rank_that_dies_or_stops_is_named_and_all_end(tmp_path: Path, how: signal.Signals, sync: str) -> None:
    study = write_study(tmp_path, LONG)
    process = launch(tmp_path, str(study), f"outputs={tmp_path}", "executor.timeout_s=8.0", f"sync.kind={sync}")
    folder = tmp_path / "small" / "minmax"
    wait_for_steps(folder, 3)
    ranks = ranks_of(folder)
    assert sorted(ranks) == [0, 1]
    os.kill(ranks[1], how)
    begin = time.monotonic()
    said, _ = process.communicate(timeout=60)
    assert time.monotonic() - begin < 60
    assert process.returncode == 1
    status = read_status(folder)
    assert status["state"] == "failed"
    assert "rank 1" in status["reason"]
    assert ("died" if how == signal.SIGKILL else "suspended") in status["reason"]
    assert "rank 1" in said
    assert not ranks_of(folder), "no rank is left behind"


@pytest.mark.slow
def test_ctrl_c_in_a_sweep_keeps_finished_runs(tmp_path: Path) -> None:
    text = (
        LONG.replace('["minmax"]', '["static", "minmax"]').replace("steps = 100000", "")
        + 'length = [{ name = "short", steps = 3, "executor.kind" = "simulated" }, { name = "long", steps = 100000 }]\n'
    )
    study = write_study(tmp_path, text)
    process = launch(tmp_path, str(study), f"outputs={tmp_path}", "policy.kind=minmax")
    finished, running = (tmp_path / "small" / f"minmax-{name}" for name in ("short", "long"))
    wait_for_steps(running, 3, timeout_s=90)
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "finished runs stay" in said
    assert read_status(finished)["state"] == "done"
    assert len(pd.read_parquet(finished / "records.parquet")) == 6
    assert read_status(running)["state"] == "failed"
    assert "stop" in read_status(running)["reason"]
    assert not (running / "records.parquet").exists()
    assert not ranks_of(running)


@pytest.mark.slow
def test_sigterm_ends_a_sweep_and_its_ranks(tmp_path: Path) -> None:
    process = launch(tmp_path, str(write_study(tmp_path, LONG)), f"outputs={tmp_path}")
    folder = tmp_path / "small" / "minmax"
    wait_for_steps(folder, 3)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert read_status(folder)["state"] == "failed"
    assert not ranks_of(folder)


def test_torchrun_entry_and_its_refusal(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(
        f'outputs = "{tmp_path}"\nsteps = 2\nglobal_batch = 8\nworld_size = 2\n'
        '[executor]\nkind = "distributed"\n[data]\nsize = 50\n'
    )
    words = ("--standalone", "--nproc-per-node", "2", "-m", "experiments.train", str(config))
    process = launch(tmp_path, *words, module="torch.distributed.run")
    said, _ = process.communicate(timeout=90)
    assert process.returncode == 0, said
    assert read_status(tmp_path / "runs" / "run")["state"] == "done"
    process = launch(tmp_path, *words, module="torch.distributed.run")
    said, _ = process.communicate(timeout=90)
    assert process.returncode != 0
    assert "holds a finished run" in said
    assert read_status(tmp_path / "runs" / "run")["state"] == "done"


@pytest.mark.slow
def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    import socket

    config = tmp_path / "run.toml"
    config.write_text(
        f'outputs = "{tmp_path}"\nsteps = 2\nworld_size = 1\nglobal_batch = 8\n[executor]\nkind = "distributed"\n'
    )
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        ranks = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        found = subprocess.run(
            [sys.executable, "-m", "experiments.train", str(config)],
            cwd=ROOT, env={**os.environ, **ranks}, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert found.returncode == 1
    assert f"127.0.0.1:{port}: this port is in use" in found.stderr
    assert "Traceback" not in found.stderr
