"""ddpsched runs rm: the folders of runs that have ended, and nothing else."""

import json
import sys
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

import typer

from ddpsched.errors import DataError, RunHeldError
from ddpsched.monitor.found import find_run, is_run
from ddpsched.own_folder import check_own, remove
from ddpsched.run_folder import OUTPUTS, STATUS
from ddpsched.run_lock import LOCK, WAIT, RunLock, refusal
from ddpsched.shortage import FULL
from ddpsched.visible_text import visible

ITSELF = "name the folder that the run itself is in"
OURS = (STATUS, LOCK, "config.toml", "logs", *OUTPUTS)  # what runs and their analysis write


def remove_runs(folders: Sequence[Path], yes: bool, as_json: bool) -> None:
    """Remove these folders, once all are found to be ended runs' and the user says so, or ``yes``.

    Raises DataError where one is no run's or holds what no run writes, RunHeldError where a run lives in one.
    """
    runs = [folder.absolute() for folder in dict.fromkeys(folders)]
    for folder in runs:
        _check(folder)
    if not yes:
        _ask(runs)
    for folder in runs:
        _remove(folder)
        if not as_json:
            print(visible(f"removed {folder}"))
    if as_json:
        print(json.dumps({"removed": [str(folder) for folder in runs]}, indent=2))


def _check(folder: Path) -> None:
    if not folder.is_dir() and not folder.is_symlink():
        raise DataError(f"{folder}: there is no such folder; `ddpsched runs ls` lists runs")
    if not is_run(folder):
        remedy = "only folders of runs are removed, outputs/STUDY/RUN; remove others by hand"
        raise DataError(f"{folder} is no run: it has no {STATUS}; {remedy}")
    if folder.parent.is_symlink():
        check_own(folder.parent, ITSELF)
    check_own(folder, ITSELF if folder.is_symlink() else "")
    if (reason := refusal(folder, WAIT)) is not None:
        raise RunHeldError(reason)
    others = sorted(path.name for path in folder.iterdir() if not any(fnmatch(path.name, each) for each in OURS))
    if others:
        named = ", ".join(others[:5]) + ", ..." * (len(others) > 5)
        raise DataError(f"{folder} holds {named}, which no run writes; move that away first, or remove it by hand")


def _ask(runs: Sequence[Path]) -> None:
    if not _has_terminal():
        which = f"{len(runs)} runs are" if len(runs) > 1 else "1 run is"
        raise DataError(f"{which} to be removed, and there is no terminal to ask; give --yes")
    for folder in runs:
        print(visible(f"{folder}: {_described(folder)}"))
    which, their = (f"{len(runs)} runs", "their") if len(runs) > 1 else ("1 run", "its")
    typer.confirm(f"remove {which}, with all {their} records and models?", abort=True)


def _has_terminal() -> bool:
    return sys.stdin.isatty()


def _described(folder: Path) -> str:
    try:
        run = find_run(folder)
    except DataError:  # a damaged status is no reason to keep a run
        return "its status cannot be read"
    return f"{run.state}, {'-' if run.steps is None else run.steps} steps"


def _remove(folder: Path) -> None:
    """Remove a folder while it is locked, so that no run begins in it meanwhile; in one piece, as far as others see."""
    lock = RunLock(folder, remedy=WAIT)
    try:
        lock.take()
    except OSError as error:
        if error.errno not in FULL:
            raise  # a full disk has no room for a lock, and is what this is to help
    aside = folder.with_name(f"{folder.name}.{lock.attempt}.part")
    folder.rename(aside)
    remove(aside)
    if aside.exists():
        raise DataError(f"{aside}, which was {folder}, could not be removed whole; remove what is left by hand")
