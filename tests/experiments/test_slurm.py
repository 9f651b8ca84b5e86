"""A sweep's launches as jobs: submitit's executor for one machine really runs them, a Slurm of scripts queues them."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from studies import write_study

from ddpsched.errors import ConfigError, RunError
from ddpsched.run_folder import read_status
from ddpsched.run_lock import LOCK, RunLock
from experiments import slurm, slurm_task
from experiments.launches import Launch, launches
from experiments.launching import Node, torchrun_options
from experiments.slurm import Cluster, Queue, cluster_of, run_jobs, shape_of
from experiments.slurm_task import LaunchTask, Notes
from experiments.study import load_study
from experiments.sweep import sweep

submitit = pytest.importorskip("submitit")
ONE = ("seed=0", "policy.kind=static")


def launches_of(tmp_path: Path, *words: str) -> list[Launch]:
    return launches(load_study(write_study(tmp_path), [f"outputs={tmp_path}", *words]))


@pytest.mark.slow
def test_jobs_on_this_machine_run_launches_and_say_why_one_failed(tmp_path: Path, capfd: Any) -> None:
    study, words = str(write_study(tmp_path)), [f"outputs={tmp_path}", *ONE]
    assert sweep(study, [*words, "data.path=/nowhere.tsv"], cluster=Cluster("local")) == 1
    said = capfd.readouterr().out
    assert "submit" in said
    assert "failed" in said
    assert "/nowhere.tsv" in said, "the run's own words, not the job's"
    assert sweep(study, words, cluster=Cluster("local")) == 0, "what failed is submitted again"
    assert "done " in capfd.readouterr().out
    assert read_status(tmp_path / "small" / "static-seed0")["state"] == "done"
    assert sweep(study, words, cluster=Cluster("local")) == 0
    assert "skip " in capfd.readouterr().out


def test_a_job_that_ignores_ctrl_c_is_ended_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "LOCAL_END_S", 0.2)
    controller = subprocess.Popen(["sh", "-c", "trap '' INT; echo; sleep 60; exit 0"], stdout=subprocess.PIPE)
    assert controller.stdout is not None
    controller.stdout.readline()
    controller.stdout.close()
    job = submitit.LocalJob(tmp_path, str(controller.pid), process=controller)
    slurm._end(job)
    assert controller.wait(10) == 0, "it ends by itself when its task is gone"


# --- a Slurm of scripts ---------------------------------------------------------------------------------------


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put commands of Slurm on PATH that keep what is submitted and answer from ``queue``; return their folder."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    scripts = {
        "sbatch": f'cp "$1" {folder}/submitted; echo x >> {folder}/times\n'
        'grep -q partition=nope "$1" && { echo "sbatch: error: invalid partition specified: nope" >&2; exit 1; }\n'
        'echo "Submitted batch job 7"',
        "srun": "exit 1",
        "squeue": f"cat {folder}/queue",
    }
    for name, text in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(slurm, "PAUSE_S", 0.0)
    monkeypatch.setattr(slurm, "ASK_S", 0.0)
    (folder / "queue").write_text("")
    return folder


def ends(launch: Launch, job: str, reason: str | None) -> None:
    """Let a job's task end as it does."""
    Notes(launch).write("end", job, reasons={run.name: reason for run in launch.runs})


def test_an_array_has_a_task_for_each_launch_and_what_is_queued_is_waited_for(tmp_path: Path, cluster: Path) -> None:
    waiting, options = launches_of(tmp_path, "seed=0"), Cluster("slurm", 1, {"time": 9, "gres": "gpu:1", "nice": "7"})
    (cluster / "queue").write_text("7_0 PENDING\n7_1 RUNNING\n")
    jobs = run_jobs(options, waiting, ["--force"])
    with pytest.MonkeyPatch.context() as patch:  # the first pause comes while both go on
        patch.setattr(slurm.time, "sleep", lambda _: (cluster / "queue").write_text("7_0 COMPLETED\n7_1 RUNNING\n"))
        ends(waiting[0], "7_0", None)
        first = next(jobs)
        assert first == (waiting[0], [(waiting[0].runs[0], None)])
    text = (cluster / "submitted").read_text()
    for line in ("array=0-1%2", "time=9", "gres=gpu:1", "nice=7", "nodes=1", "cpus-per-task=1", "job-name=small"):
        assert f"#SBATCH --{line}\n" in text
    del jobs  # the sweep is interrupted, the second job goes on
    assert Notes(waiting[1]).read("job") == {"job": "7_1"}
    (cluster / "queue").write_text("7_1 RUNNING\n")
    jobs = run_jobs(options, waiting[1:], [])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slurm.time, "sleep", lambda _: (cluster / "queue").write_text("7_1 OUT_OF_MEMORY\n"))
        ((_, ((run, reason),)),) = list(jobs)
    assert (cluster / "times").read_text() == "x\n", "it was not submitted again"
    assert run == waiting[1].runs[0]
    assert reason is not None
    assert "its job 7_1 ended (OUT_OF_MEMORY) and did not say why; see" in reason


def test_a_job_that_slurm_starts_again_is_not_over(tmp_path: Path, cluster: Path) -> None:
    """Its first start ended by a signal, and left a result."""
    (launch,), job = launches_of(tmp_path, *ONE), submitit.SlurmJob(tmp_path, "7")
    job.paths.result_pickle.write_bytes(b"")
    (cluster / "queue").write_text("7 PENDING\n")
    assert not Queue().is_over(launch, job)
    (cluster / "queue").write_text("7 CANCELLED\n")
    assert Queue().is_over(launch, job)
    (cluster / "queue").write_text("")
    assert Queue().is_over(launch, job), "minutes after its end the queue has it no longer"
    (cluster / "squeue").write_text("#!/bin/sh\nexit 1\n")
    assert not Queue().is_over(launch, job), "no answer, and no note of its end"


def test_without_an_answer_of_slurm_a_jobs_own_note_ends_the_wait(
    tmp_path: Path, cluster: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr(slurm.time, "monotonic", lambda: clock[0])
    (launch,), job, queue = launches_of(tmp_path, *ONE), submitit.SlurmJob(tmp_path, "7"), Queue()

    def is_over_at(moment: float) -> bool:
        clock[0] = moment
        return queue.is_over(launch, job)

    (cluster / "queue").write_text("7 RUNNING\n")
    assert not is_over_at(1)
    fault = "slurm_load_jobs error: Unable to contact slurm controller"
    (cluster / "squeue").write_text(f"#!/bin/sh\necho {fault} >&2\nexit 1\n")
    ends(launch, "7", None)
    assert not any(is_over_at(moment) for moment in range(2, 300, 60)), "the last answer is still believed"
    said = " ".join(capsys.readouterr().out.split())
    assert said.count(f"squeue has not answered 3 times: {fault}; until it does") == 1
    assert "Try `squeue --me`; after Ctrl-C jobs go on, and the same command waits for them" in said
    assert not is_over_at(310)
    Notes(launch).path("end").unlink()  # Slurm started the job again
    assert not is_over_at(620)
    ends(launch, "7", None)
    assert not is_over_at(630)
    assert is_over_at(930)
    (cluster / "squeue").write_text("#!/bin/sh\necho 7 RUNNING\n")
    assert not is_over_at(940), "Slurm's word stands above a note"


def test_a_study_that_sbatch_refuses(tmp_path: Path, cluster: Path) -> None:
    with pytest.raises(ConfigError, match="did not take the jobs: sbatch: error: invalid partition specified: nope"):
        list(run_jobs(Cluster("slurm", 1, {"time": 9, "partition": "nope"}), launches_of(tmp_path, *ONE), []))


def test_where_there_is_no_slurm_the_message_says_how_to_run_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"no sbatch on PATH.*login node.*without --on slurm"):
        list(run_jobs(Cluster("slurm", 1, {"time": 9}), launches_of(tmp_path, *ONE), []))
    with pytest.raises(ConfigError, match="no sbatch on PATH"):
        cluster_of("slurm", 1, [])  # before it asks for a time limit
    assert list(run_jobs(Cluster("slurm", 1, {"time": 9}), [], [])) == [], "nothing is left to run"


@pytest.mark.parametrize(
    ("where", "nodes", "words", "fault"),
    [
        ("slrm", 1, [], "^--on 'slrm': give one of here, slurm, local$"),
        ("slurm", 1, [], "no time limit is given; .* --slurm time=120"),
        ("slurm", 1, ["time=1:00"], "time=1:00: give a whole number of minutes, from 1"),
        ("slurm", 1, ["time"], "--slurm time: give a whole number of minutes, from 1"),
        ("slurm", 1, ["time=9", "array_parallelism=x"], "array_parallelism=x: give a whole number, from 1"),
        ("slurm", 1, ["time=9", "nodes=2"], "nodes follows from --nodes"),
        ("slurm", 1, ["time="], "as key=value, or a key alone"),
        ("slurm", 0, ["time=9"], "--nodes 0: give at least 1"),
        ("here", 2, [], "--nodes 2 is for --on slurm, not for --on here"),
        ("local", 1, ["time=9"], "--slurm time=9 is for --on slurm"),
    ],
)
def test_options_that_cannot_be_meant(cluster: Path, where: str, nodes: int, words: list[str], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        cluster_of(where, nodes, words)


def test_ranks_are_dealt_to_machines(tmp_path: Path) -> None:
    (launch,) = launches_of(tmp_path, *ONE)
    assert shape_of(launch, Cluster("slurm", 2)).nodes == 1, "a simulated run is one process"
    (run,) = launch.runs
    executor = run.executor.model_copy(update={"kind": "distributed", "threads": 3})
    ranks = replace(launch, runs=(run.model_copy(update={"world_size": 8, "executor": executor}),))
    assert str(shape_of(ranks, Cluster("slurm", 2))) == "machines: 2, processors on each: 12"
    with pytest.raises(ConfigError, match="world_size = 8, which 3 machines cannot share evenly"):
        shape_of(ranks, Cluster("slurm", 3))
    words = " ".join(torchrun_options(8, Node(1, 2, "first:29500", "7.0")))
    assert "--rdzv-endpoint first:29500 --rdzv-id 7.0" in words
    assert "--node-rank 1 --nnodes 2 --nproc-per-node 4" in words


# --- a task ---------------------------------------------------------------------------------------------------


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[LaunchTask, list[Any]]:
    """Return a task within a job, and the list of what it would start."""
    started: list[Any] = []

    def run_launch(launch: Launch, flags: Any, node: Node) -> Any:
        started.append((flags, node, sorted(path.name for path in launch.runs[0].run_dir.glob(LOCK))))
        return [(run, None if len(started) > 1 else "why") for run in launch.runs]

    monkeypatch.setattr(slurm_task, "run_launch", run_launch)
    for name, value in {"SUBMITIT_EXECUTOR": "local", "SUBMITIT_LOCAL_JOB_ID": "7", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    (launch,) = launches_of(tmp_path, *ONE)
    return LaunchTask(launch, ("--overwrite",)), started


def test_a_task_notes_its_end_and_fails_with_its_launch(task: Any) -> None:
    mine, started = task
    with pytest.raises(RunError, match="static-seed0: why"):
        mine()
    assert Notes(mine.launch).read("end") == {"job": "7", "reasons": {"static-seed0": "why"}}
    mine()
    assert Notes(mine.launch).read("end") == {"job": "7", "reasons": {"static-seed0": None}}
    (flags, node, _), _ = started
    assert flags == ["--overwrite"]
    assert (node.rank, node.count, node.key) == (0, 1, "7.0")


def test_a_task_that_slurm_starts_again_goes_on_with_what_it_began(task: Any) -> None:
    mine, started = task
    folder = mine.launch.runs[0].run_dir
    lock = RunLock(folder)
    lock.take()
    held = json.loads((folder / LOCK).read_text())
    held["place"]["host"]["node"] = "elsewhere"  # whose processes cannot be seen from here
    (folder / LOCK).write_text(json.dumps(held))
    status = {"state": "failed", "started": "2026-01-02T00:00:00+00:00"}
    (folder / "status.json").write_text(json.dumps(status))
    for host, since, locks in (
        ("another", "2026-01-01T00:00:00+00:00", [LOCK]),
        ("elsewhere", "2999-01-01T00:00:00+00:00", [LOCK]),  # the lock was taken before that start
        ("elsewhere", "2026-01-01T00:00:00+00:00", []),
    ):
        started.clear()
        Notes(mine.launch).write("start", "7", host=host, since=since)
        with pytest.raises(RunError):
            mine()
        ((flags, _, found),) = started
        assert found == locks
        assert flags == (["--overwrite"] if since > status["started"] else [])
