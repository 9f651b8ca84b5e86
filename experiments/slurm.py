"""A study's launches as jobs, through submitit: a Slurm array with a task for each, or processes on this machine.

Jobs outlive the sweep that submitted them. A sweep that is started again skips what is done, waits for jobs that are
still there, and submits the rest anew.
"""

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ddpsched.config import RunConfig
from ddpsched.decode import shown
from ddpsched.errors import ConfigError
from ddpsched.run_folder import read_status
from ddpsched.terminal import plain_console
from experiments.launches import Launch
from experiments.launching import Ended
from experiments.slurm_task import FOLDER, LaunchTask, Notes

Where = Literal["here", "slurm", "local"]
MOST_TASKS = 1000  # of an array: Slurm's MaxArraySize is 1001 unless it was set
RESTARTS = 3  # after a time limit, of launches that go on
PAUSE_S = {"slurm": 2.0, "local": 0.05}
WITHOUT_LIMIT_MIN = 60 * 24 * 365  # for submitit's local executor, which ends a job after two minutes else
SET_HERE = ("nodes", "ntasks_per_node", "array", "use_srun", "stderr_to_stdout")
LISTS = ("setup", "teardown", "srun_args")  # of submitit's parameters
console = plain_console(soft_wrap=True)


@dataclass(frozen=True)
class Cluster:
    """The options of a submission. ``where``: slurm or local. ``options``: of sbatch, as submitit names them."""

    where: Where
    nodes: int = 1
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, order=True)
class Shape:
    """The machines and processors that a launch takes, and whether it goes on after a time limit."""

    nodes: int
    processors: int
    goes_on: bool


def cluster_of(where: Where, nodes: int, words: Sequence[str]) -> Cluster:
    """Return the options that --nodes and --slurm give. Raises ConfigError for those that cannot be meant."""
    options: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        key = key.strip("-").replace("-", "_")
        if not key or (equals and not value):
            raise ConfigError(f"--slurm {shown(word)}: give an option of sbatch as key=value, or a key alone")
        if key in SET_HERE:
            raise ConfigError(f"--slurm {word}: {key} follows from --nodes and the study; leave it out")
        options[key] = value if equals else True
    if nodes < 1:
        raise ConfigError(f"--nodes {nodes}: give at least 1")
    if where != "slurm" and (nodes > 1 or options):
        given = f"--nodes {nodes}" if nodes > 1 else f"--slurm {words[0]}"
        raise ConfigError(f"{given} is for --on slurm, not for --on {where}; add --on slurm, or leave it out")
    if where == "slurm":
        minutes = str(options.get("time", ""))
        if not minutes.isdecimal() or int(minutes) < 1:
            found = f"time = {shown(minutes)}" if minutes else "no time limit is given"
            raise ConfigError(f"--on slurm: {found}; give a launch's longest time in whole minutes: --slurm time=120")
        options["time"] = int(minutes)
    return Cluster(where, nodes, options)


def shape_of(launch: Launch, cluster: Cluster) -> Shape:
    """Return what a launch takes. Raises ConfigError where its ranks cannot be dealt evenly to the machines."""
    run = launch.runs[0]
    ranks, nodes = (run.world_size, cluster.nodes) if run.executor.kind == "distributed" else (1, 1)
    if ranks % nodes:
        raise ConfigError(
            f"--nodes {nodes}: {run.run_dir} has world_size = {ranks}, which {nodes} machines cannot share evenly; "
            "give a number of nodes that divides it"
        )
    goes_on = all(each.train.checkpoint_every > 0 for each in launch.runs)
    return Shape(nodes, ranks // nodes * run.executor.threads, goes_on)


def run_jobs(cluster: Cluster, waiting: Sequence[Launch], flags: Sequence[str]) -> Iterator[tuple[Launch, Ended]]:
    """Submit launches, and yield each with how its runs ended as soon as its job has.

    Raises ConfigError where there is no Slurm, no submitit, or sbatch refuses.
    """
    shapes = {id(launch): shape_of(launch, cluster) for launch in waiting}
    submitit = _submitit(cluster)
    if cluster.where == "local":
        for launch in waiting:  # one after another: they share this machine
            yield from _wait_for(cluster, _submit(submitit, cluster, shapes[id(launch)], [launch], flags))
        return
    going, anew = _jobs_there(submitit, waiting)
    for shape in sorted(set(shapes.values())):
        of_shape = [launch for launch in anew if shapes[id(launch)] == shape]
        for part in (of_shape[at : at + MOST_TASKS] for at in range(0, len(of_shape), MOST_TASKS)):
            going += _submit(submitit, cluster, shape, part, flags)
    yield from _wait_for(cluster, going)


def _submitit(cluster: Cluster) -> Any:
    if cluster.where == "slurm" and shutil.which("sbatch") is None:
        raise ConfigError(
            "--on slurm: there is no sbatch on PATH, so Slurm cannot be reached from this machine; start the sweep "
            "where there is one, such as a cluster's login node, or run the study on this machine: without --on slurm"
        )
    try:
        import submitit
    except ModuleNotFoundError:
        raise ConfigError(f'--on {cluster.where} needs submitit: pip install "ddpsched[slurm]"') from None
    return submitit


def _jobs_there(submitit: Any, waiting: Sequence[Launch]) -> tuple[list[tuple[Launch, Any]], list[Launch]]:
    """Return launches whose jobs have not ended, with these, and the launches to submit."""
    noted = [(launch, Notes(launch).read("job").get("job")) for launch in waiting]
    jobs = [(launch, job and submitit.SlurmJob(_folder(launch), job)) for launch, job in noted]
    going = [(launch, job) for launch, job in jobs if job is not None and not job.done()]
    for launch, job in going:
        unseen = "; where Slurm has it no longer, delete " + str(Notes(launch).path("job"))
        state = job.state
        console.print(f"waits  {launch.label} (job {job.job_id}, {state}{unseen if state == 'UNKNOWN' else ''})")
    there = {id(launch) for launch, _ in going}
    return going, [launch for launch in waiting if id(launch) not in there]


def _folder(launch: Launch) -> Path:
    return launch.runs[0].run_dir.parent / FOLDER


def _submit(
    submitit: Any, cluster: Cluster, shape: Shape, launches: Sequence[Launch], flags: Sequence[str]
) -> list[tuple[Launch, Any]]:
    """Submit launches of one shape, and note their jobs."""
    folder = _folder(launches[0])
    if cluster.where == "local":
        executor = submitit.LocalExecutor(folder, max_num_timeout=0)
        executor.update_parameters(timeout_min=WITHOUT_LIMIT_MIN)
    else:
        executor = submitit.SlurmExecutor(folder, max_num_timeout=RESTARTS if shape.goes_on else 0)
        executor.update_parameters(**_parameters(executor, cluster, shape, launches[0].runs[0]))
    tasks = [LaunchTask(launch, tuple(flags)) for launch in launches]
    try:
        jobs = executor.submit_array(tasks)
    except (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError) as error:
        lines = [line for line in str(error).splitlines() if line.startswith("sbatch: error")] or [str(error)]
        raise ConfigError(f"sbatch did not take the jobs: {'; '.join(lines)}; see --slurm key=value") from None
    for launch, job in zip(launches, jobs, strict=True):
        Notes(launch).write("job", job.job_id)
        of = f"{shape.nodes} machine{'s' if shape.nodes > 1 else ''} with {shape.processors} processors"
        console.print(f"submit {launch.label} (job {job.job_id}{'' if cluster.where == 'local' else ', ' + of})")
    return list(zip(launches, jobs, strict=True))


def _parameters(executor: Any, cluster: Cluster, shape: Shape, run: RunConfig) -> dict[str, Any]:
    """Return submitit's parameters; options that it does not know are handed to sbatch as they are."""
    given = {key: [value] if key in LISTS else value for key, value in cluster.options.items()}
    known = executor._valid_parameters()
    other = {key: value for key, value in given.items() if key not in known}
    ours = {"job_name": run.study, "nodes": shape.nodes, "ntasks_per_node": 1, "cpus_per_task": shape.processors}
    mine = {**ours, **{key: value for key, value in given.items() if key in known}}
    return {**mine, "additional_parameters": other} if other else mine


def _wait_for(cluster: Cluster, going: Sequence[tuple[Launch, Any]]) -> Iterator[tuple[Launch, Ended]]:
    left = list(going)
    try:
        while left:
            for launch, job in [each for each in left if each[1].done()]:
                left = [each for each in left if each[0] is not launch]
                yield launch, _ended(launch, job)
            if left:
                time.sleep(PAUSE_S[cluster.where])
    except KeyboardInterrupt:
        if cluster.where == "local":
            for _, job in left:
                job.cancel()
        raise


def _ended(launch: Launch, job: Any) -> Ended:
    """Return how the runs of a launch ended, as its task has noted; else by their status and the job's state."""
    end = Notes(launch).read("end")
    if end.get("job") == job.job_id:
        return [(run, end["reasons"].get(run.name)) for run in launch.runs]
    reason = f"its job {job.job_id} ended ({job.state}) and did not say why; see {job.paths.stderr}"
    return [(run, None if read_status(run.run_dir)["state"] == "done" else reason) for run in launch.runs]
