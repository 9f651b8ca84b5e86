"""A study's launches as jobs, through submitit: a Slurm array with a task for each, or processes on this machine.

Jobs outlive the sweep that submitted them. A sweep that is started again skips what is done, waits for jobs that are
still there, and submits the rest anew.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args

from ddpsched.config import RunConfig
from ddpsched.decode import shown
from ddpsched.errors import ConfigError
from ddpsched.processes import children
from ddpsched.run_folder import read_status
from ddpsched.terminal import plain_console
from ddpsched.visible_text import visible
from experiments.launches import Launch
from experiments.launching import Ended
from experiments.slurm_task import FOLDER, LaunchTask, Notes

Where = Literal["here", "slurm", "local"]
MOST_TASKS = 1000  # of an array: Slurm's MaxArraySize is 1001 unless it was set
RESTARTS = 3  # after a time limit, of launches that go on
PAUSE_S, LOCAL_PAUSE_S, LOCAL_END_S = 2.0, 0.05, 3.0
ASK_S = 30.0  # between two looks at Slurm's queue
STATE_VALID_S = 300.0  # a state of a job, without a new answer
END_NOTE_WAIT_S = 300.0  # from the note of a job's end to its being over, where Slurm does not answer
WARN_AFTER = 3  # questions without an answer
OVER = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "REVOKED", "TIMEOUT",
)  # fmt: skip
WITHOUT_LIMIT_MIN = 60 * 24 * 365  # for submitit's local executor, which ends a job after two minutes else
SET_HERE = ("nodes", "ntasks_per_node", "array", "use_srun", "stderr_to_stdout")
WHOLE = {"time", "array_parallelism"}  # of submitit's parameters; others it hands on
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

    def __str__(self) -> str:
        """Return ``machines: 2, processors on each: 4``."""
        return f"machines: {self.nodes}, processors on each: {self.processors}"


@dataclass
class Queue:
    """Slurm's queue, asked at most every ``ASK_S`` seconds; submitit asks sacct, which answers with accounting only.

    Where squeue does not answer, that is printed once, and a job is over when its task noted its end
    ``END_NOTE_WAIT_S`` ago: a job that Slurm starts again takes its note back.
    """

    _states: dict[str, str] = field(default_factory=dict)
    _asked_s: float = float("-inf")
    _answered_s: float = float("-inf")
    _unanswered: int = 0  # times, since the last answer
    _noted_s: dict[str, float] = field(default_factory=dict)  # when a job's end was first seen to be noted

    def state(self, job_id: str, age_s: float = ASK_S) -> str:
        """Return Slurm's word for a job's state, at most ``age_s`` old; "gone" minutes after its end, or "UNKNOWN".

        A job is in the queue from its submission on. Unknown: Slurm has not answered yet, or not for ``STATE_VALID_S``.
        """
        if time.monotonic() - self._asked_s > age_s:
            self._ask()
        is_known = time.monotonic() - self._answered_s <= STATE_VALID_S
        return self._states.get(job_id, "gone") if is_known else "UNKNOWN"

    def _ask(self) -> None:
        self._asked_s = time.monotonic()
        command = ["squeue", "--noheader", "--array", "--states=all", "--me", "--format=%i %T"]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        if found.returncode == 0:
            self._states = dict(line.split() for line in found.stdout.splitlines())
            self._answered_s, self._unanswered = time.monotonic(), 0
            self._noted_s.clear()
            return
        self._unanswered += 1
        if self._unanswered == WARN_AFTER:
            said = visible(found.stderr.strip() or f"exit code {found.returncode}", lines=True)
            console.print(
                f"squeue has not answered {WARN_AFTER} times: {said}; until it does, a launch is over when its task "
                "notes so. Try `squeue --me`; after Ctrl-C jobs go on, and the same command waits for them",
                style="red",
            )

    def is_over(self, launch: Launch, job: Any) -> bool:
        """Return whether a launch's job has ended and will not start again.

        One with a result may: Slurm ends a job that it starts again by a signal, of which the task makes a failure.
        """
        has_result = job.paths.result_pickle.exists()
        state = self.state(job.job_id, PAUSE_S if has_result else ASK_S)
        return self._is_noted(launch, job) if state == "UNKNOWN" else state in ("gone", *OVER)

    def _is_noted(self, launch: Launch, job: Any) -> bool:
        if Notes(launch).read("end").get("job") != job.job_id:
            self._noted_s.pop(job.job_id, None)
            return False
        return time.monotonic() - self._noted_s.setdefault(job.job_id, time.monotonic()) >= END_NOTE_WAIT_S


def cluster_of(where: str, nodes: int, words: Sequence[str]) -> Cluster:
    """Return the options that --on, --nodes and --slurm give. Raises ConfigError for those that cannot be meant."""
    if where not in get_args(Where):
        raise ConfigError(f"--on {shown(where)}: give one of {', '.join(get_args(Where))}")
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
    if where == "slurm" and "time" not in options:
        _check_slurm()  # where there is none, a time limit helps nobody
        raise ConfigError("--on slurm: no time limit is given; give a launch's in minutes, such as --slurm time=120")
    for key in WHOLE & options.keys():
        if not str(options[key]).isdecimal() or int(options[key]) < 1:
            given = key if options[key] is True else f"{key}={options[key]}"
            raise ConfigError(f"--slurm {given}: give a whole number{' of minutes' * (key == 'time')}, from 1")
        options[key] = int(options[key])
    return Cluster(cast(Where, where), nodes, options)


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
    if not waiting:
        return
    shapes = {id(launch): shape_of(launch, cluster) for launch in waiting}
    submitit = _submitit(cluster)
    if cluster.where == "local":
        for launch in waiting:  # one after another: they share this machine
            ((_, job),) = _submit(submitit, cluster, shapes[id(launch)], [launch], flags)
            yield launch, _wait(launch, job)
        return
    queue = Queue()
    going = _jobs_there(submitit, waiting, queue)
    there = {id(launch) for launch, _ in going}
    for shape in sorted(set(shapes.values())):
        anew = [launch for launch in waiting if shapes[id(launch)] == shape and id(launch) not in there]
        for part in (anew[at : at + MOST_TASKS] for at in range(0, len(anew), MOST_TASKS)):
            going += _submit(submitit, cluster, shape, part, flags)
    queue = Queue()  # which has the new jobs
    while going:
        looked = [(launch, job, queue.is_over(launch, job)) for launch, job in going]
        going = [(launch, job) for launch, job, over in looked if not over]
        yield from ((launch, _ended(launch, job, queue.state(job.job_id))) for launch, job, over in looked if over)
        if going:
            time.sleep(PAUSE_S)


def _check_slurm() -> None:
    """Raise ConfigError where Slurm cannot be reached from this machine."""
    if shutil.which("sbatch") is None:
        raise ConfigError(
            "--on slurm: there is no sbatch on PATH, so Slurm cannot be reached from this machine; start the sweep "
            "where there is one, such as a cluster's login node, or run the study on this machine: without --on slurm"
        )


def _submitit(cluster: Cluster) -> Any:
    if cluster.where == "slurm":
        _check_slurm()
    try:
        import submitit
    except ModuleNotFoundError:
        raise ConfigError(f'--on {cluster.where} needs submitit: pip install "ddpsched[slurm]"') from None
    return submitit


def _jobs_there(submitit: Any, waiting: Sequence[Launch], queue: Queue) -> list[tuple[Launch, Any]]:
    """Return launches whose jobs have not ended, with these."""
    noted = [(launch, Notes(launch).read("job").get("job")) for launch in waiting]
    jobs = [(launch, submitit.SlurmJob(_folder(launch), job)) for launch, job in noted if job is not None]
    going = [(launch, job) for launch, job in jobs if not queue.is_over(launch, job)]
    for launch, job in going:
        console.print(f"waits  {launch.label} (job {job.job_id}, {queue.state(job.job_id)})")
    return going


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
        console.print(f"submit {launch.label} (job {job.job_id}{'' if cluster.where == 'local' else f', {shape}'})")
    return list(zip(launches, jobs, strict=True))


def _parameters(executor: Any, cluster: Cluster, shape: Shape, run: RunConfig) -> dict[str, Any]:
    """Return submitit's parameters; options that it does not know are handed to sbatch as they are."""
    given = {key: [value] if key in LISTS else value for key, value in cluster.options.items()}
    known = executor._valid_parameters()
    other = {key: value for key, value in given.items() if key not in known}
    ours = {"job_name": run.study, "nodes": shape.nodes, "ntasks_per_node": 1, "cpus_per_task": shape.processors}
    mine = {**ours, **{key: value for key, value in given.items() if key in known}}
    return {**mine, "additional_parameters": other} if other else mine


def _wait(launch: Launch, job: Any) -> Ended:
    """Wait for a job on this machine; end it where this process is interrupted."""
    try:
        while not job.done():
            time.sleep(LOCAL_PAUSE_S)
    except KeyboardInterrupt:
        _end(job)
        raise
    return _ended(launch, job, job.state)


def _end(job: Any) -> None:
    """End a job on this machine, also one that ignores Ctrl-C as this process does in the background of a script."""
    job.cancel()
    deadline = time.monotonic() + LOCAL_END_S
    while not job.done() and time.monotonic() < deadline:
        time.sleep(LOCAL_PAUSE_S)
    if not job.done():
        for task in children(int(job.job_id)):
            os.kill(task, signal.SIGKILL)  # its run gets SIGTERM by that


def _ended(launch: Launch, job: Any, state: str) -> Ended:
    """Return how the runs of a launch ended, as its task has noted; else by their status and the job's state."""
    end = Notes(launch).read("end")
    if end.get("job") == job.job_id:
        return [(run, end["reasons"].get(run.name)) for run in launch.runs]
    reason = f"its job {job.job_id} ended ({state}) and did not say why; see {job.paths.stderr}"
    return [(run, None if read_status(run.run_dir)["state"] == "done" else reason) for run in launch.runs]
