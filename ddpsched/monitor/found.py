"""The runs of a folder, by their status.json: no records are read, but for the last line of one file.

A run that failed before it began has no status, and is found by its launcher's log.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ddpsched.decode import decode_json, decode_toml
from ddpsched.errors import DataError
from ddpsched.launcher_log import launcher_logs, never_began
from ddpsched.record_lines import unsealed
from ddpsched.regular_file import read_regular
from ddpsched.run_folder import STATUS, About, read_status
from ddpsched.run_lock import refusal

LAST_BYTES = 4096  # in which a line of records ends; most have a thousand


@dataclass(frozen=True)
class FoundRun:
    """A run: its folder, its status, and how many steps are done. What is not known is None.

    The steps of one that is done are those of its status where rank 0's lines are no longer there.
    One that never began has failed, and the reason is its launcher's.
    """

    folder: Path
    state: str
    reason: str | None
    policy: str | None = None
    peer: str | None = None
    mode: str | None = None
    world_size: int | None = None
    seed: int | None = None
    steps: int | None = None
    total_steps: int | None = None
    started: str | None = None
    wall_s: float | None = None  # of a run that has ended
    sinks: dict[str, str] | None = None
    began: bool = True

    @property
    def name(self) -> str:
        """STUDY/RUN."""
        return name_of(self.folder)

    @property
    def plans_by(self) -> str:
        """The policy, or the package whose batching it runs; - where it is not known."""
        return self.peer or self.policy or "-"


def name_of(folder: Path) -> str:
    """Return STUDY/RUN of a run's folder, however its path is written; a link has the name of the link.

    >>> name_of(Path("/outputs/study/run")), name_of(Path("/outputs/study/other/../run"))
    ('study/run', 'study/run')
    """
    path = folder.absolute()
    if path.name == "..":
        path = path.resolve()
    study = path.parent.resolve() if path.parent.name == ".." else path.parent
    return f"{study.name}/{path.name}"


def find_runs(folder: Path) -> tuple[list[FoundRun], dict[Path, str]]:
    """Return the runs in ``folder``, in order of their start, and why others are left out, by their folders.

    Those that never began come last. ``folder``: all outputs, a study's, or a run's. Raises DataError where there is
    no such folder.
    """
    _check_folder(folder, "give the one that runs were written to, as outputs or outputs/STUDY")
    runs: list[FoundRun] = []
    left_out: dict[Path, str] = {}
    for each in _folders(folder):
        try:
            runs.append(find_run(each))
        except DataError as error:
            left_out[each] = str(error)
    return sorted(runs, key=lambda run: (not run.began, run.started or "", run.name)), left_out


def find_run(folder: Path) -> FoundRun:
    """Return the run of a folder. Raises DataError where it is none, or its status cannot be read."""
    remedy = "give the folder of a run, outputs/STUDY/RUN; `ddpsched runs ls` lists them"
    _check_folder(folder, remedy)
    status = read_status(folder)
    if status["state"] == "absent":
        if (why := never_began(folder)) is not None:
            return FoundRun(folder, "failed", why, began=False)
        if refusal(folder) is not None:
            raise DataError(f"{folder}: its run is starting, and has no {STATUS} yet; ask again in a moment")
        raise DataError(f"{folder} is no run: it has no {STATUS}; {remedy}")
    about, running = status.get("about"), status["state"] == "running"
    labels = _of_config(folder) if about is None else About.model_validate(about)
    return FoundRun(
        folder=folder,
        state=status["state"],
        reason=status.get("reason"),
        policy=labels.policy,
        peer=labels.peer,
        mode=labels.mode,
        world_size=labels.world_size,
        seed=labels.seed,
        steps=_steps(folder) or status.get("num_steps"),
        total_steps=status.get("total_steps"),
        started=status.get("started"),
        wall_s=None if running else status.get("wall_s"),
        sinks=status.get("sinks"),
    )


def _check_folder(folder: Path, remedy: str) -> None:
    if not folder.is_dir():
        fault = "is no folder" if folder.exists() else "there is no such folder"
        raise DataError(f"{folder}: {fault}; {remedy}")


def _folders(folder: Path) -> Iterator[Path]:
    """Yield the runs' folders here and on the two levels below, in alphabetical order."""
    if is_run(folder):
        yield folder
        return
    for study in _within(folder):
        if is_run(study):
            yield study
        else:
            yield from filter(is_run, _within(study))


def is_run(folder: Path) -> bool:
    """Return whether a folder is that of a run that began, or of one that was launched and failed before."""
    return (folder / STATUS).exists() or bool(launcher_logs(folder))


def _within(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))
    except PermissionError:  # another user's, in a folder that is shared
        return []


def _of_config(folder: Path) -> About:
    """Return the labels of a run whose status, of an earlier version, has none: those of its config, if it is there."""
    try:
        config = decode_toml(read_regular(folder / "config.toml").decode())
        policy, mode = config["policy"], config["executor"]["kind"]
        sizes = {name: config[name] for name in ("seed", "world_size")}
        return About(policy=policy["kind"], peer=policy.get("peer"), mode=mode, **sizes)
    except (OSError, ValueError, KeyError, TypeError):  # what reads a config to use it says what is wrong with it
        return About()


def _steps(folder: Path) -> int | None:
    """Return how many steps are done, by rank 0's last whole line; None where it has none that can be read."""
    try:
        with (folder / "records-rank0.jsonl").open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - LAST_BYTES))
            line = file.read(LAST_BYTES).rpartition(b"\n")[0].rpartition(b"\n")[2]
        return int(decode_json(unsealed(line) or line)["step"]) + 1
    except (OSError, ValueError, KeyError, TypeError):
        return None
