"""A launch as a task that submitit starts: on each machine of a Slurm job, or on this one by its local executor.

Its submission, start and end are written into the study's ``.slurm`` folder, by which a sweep that is started again
finds its jobs. Slurm starts a task anew after a preemption, and at the time limit where the launch can go on: runs with
checkpoints go on then, runs that take turns begin anew.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ddpsched.errors import RunError
from ddpsched.records import read_json, write_json
from ddpsched.run_folder import read_status
from ddpsched.run_lock import LOCK, holder
from experiments.finished import is_done
from experiments.launches import Launch
from experiments.launching import Ended, Node, run_launch

FOLDER = ".slurm"  # of a study: what submitit writes, and the notes below


@dataclass(frozen=True)
class Notes:
    """The notes on a launch's newest job, each a JSON object; empty where there is none.

    ``job``: its id. ``start``: id, host and moment of its newest start. ``end``: id, and by run why it is not done.
    """

    launch: Launch

    @property
    def folder(self) -> Path:
        """The folder of the study's jobs."""
        return self.launch.runs[0].run_dir.parent / FOLDER

    def path(self, name: str) -> Path:
        """Return the path of a note."""
        return self.folder / f"{self.launch.runs[0].name}.{name}.json"

    def read(self, name: str) -> dict[str, Any]:
        """Return a note."""
        return read_json(self.path(name)) if self.path(name).exists() else {}

    def write(self, name: str, job: str, **facts: object) -> None:
        """Write a note of this job."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.path(name), {"job": job, **facts})


@dataclass(frozen=True)
class LaunchTask:
    """Run a launch; ``flags``: such as --overwrite. Raises RunError where it fails, so that its job fails too."""

    launch: Launch
    flags: tuple[str, ...]

    def __call__(self) -> None:
        """Run this machine's part of the launch."""
        from submitit.helpers import TorchDistributedEnvironment

        env = TorchDistributedEnvironment()  # which draws the port from the job's id, the same on all machines
        job, notes = env._job_env, Notes(self.launch)
        earlier = notes.read("start")
        flags = _flags_of(self.launch, self.flags, earlier if earlier.get("job") == job.job_id else {})
        if "--overwrite" not in flags and is_done(self.launch):
            return  # Slurm started it again after its end
        if job.node == 0:
            _free(self.launch, earlier)
            notes.path("end").unlink(missing_ok=True)
            notes.write("start", job.job_id, host=os.uname().nodename, since=_now())
        key = f"{job.job_id}.{os.environ.get('SLURM_RESTART_COUNT', 0)}"
        node = Node(job.node, job.num_nodes, f"{env.master_addr}:{env.master_port}", key)
        try:
            ended = [each for process in self.launch.processes() for each in run_launch(process, flags, node)]
        except Exception as error:
            if job.node == 0:
                notes.write("end", job.job_id, reasons={run.name: str(error) for run in self.launch.runs})
            raise
        if job.node == 0:
            notes.write("end", job.job_id, reasons={run.name: reason for run, reason in ended})
            _raise_for(ended)

    def checkpoint(self) -> Any:
        """Return what Slurm is to start again."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def _flags_of(launch: Launch, flags: Sequence[str], earlier: dict[str, Any]) -> list[str]:
    """Return the flags of this start: runs that this job's earlier start began to overwrite are not overwritten."""
    begun = [read_status(run.run_dir).get("started") or "" for run in launch.runs]
    if earlier and all(started >= earlier["since"] for started in begun):
        return [flag for flag in flags if flag != "--overwrite"]
    return list(flags)


def _free(launch: Launch, earlier: dict[str, Any]) -> None:
    """Remove locks that this launch's earlier start left on another machine, whose processes cannot be seen from here.

    They have ended: Slurm starts a job again after its end, and a sweep submits a launch after its job's end.
    """
    for run in launch.runs:
        current = holder(run.run_dir)
        if current is None or current.place.judge() != "unknown":
            continue
        if current.place.host.node == earlier.get("host") and current.since >= earlier["since"]:
            (run.run_dir / LOCK).unlink(missing_ok=True)


def _raise_for(ended: Ended) -> None:
    failed = [f"{run.run_dir}: {reason}" for run, reason in ended if reason is not None]
    if failed:
        raise RunError("; ".join(failed))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
