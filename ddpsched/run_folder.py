"""The folder of one run, ``outputs/<study>/<name>``, and its files.

``config.toml`` as resolved, ``environment.json``, ``status.json`` (the marker:
only "done" means done, whatever an exit code says), ``records-rank*.jsonl`` and
``records.parquet``, ``ledger.jsonl``, ``evaluations.jsonl``, ``checkpoints/``,
``model/``, ``logs/rank*.log``, ``figures/``; and ``lock`` while a run works in it.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from ddpsched.decode import decode_json
from ddpsched.errors import DataError, RunExistsError, RunFinishedError
from ddpsched.own_folder import ELSEWHERE, check_own, remove
from ddpsched.processes import Host
from ddpsched.records import RECORDS, read_json, write_json, write_text
from ddpsched.regular_file import read_regular
from ddpsched.run_lock import RunLock, holder, launch_id, launcher_id, refusal
from ddpsched.shortage import full_disk
from ddpsched.table import first_fault
from ddpsched.visible_text import visible

STATUS = "status.json"
RESTART = "TORCHELASTIC_RESTART_COUNT"  # may differ between machines, so it counts only until the attempt is known
LONGEST_REASON = 20_000  # characters: of a traceback
START_SKEW_S = 5.0  # the ranks of one attempt do not start at the same moment
NOTES = ("about", "total_steps", "num_steps", "sinks")  # keys of status.json that stay as the state changes
OUTPUTS = (
    "records-rank*.jsonl", "timeline-rank*.jsonl", "*.part", RECORDS, "evaluations.jsonl", "environment.json",
    "ledger.jsonl", "quarantine.jsonl", "checkpoints", "model", "figures", "tensorboard",
)  # fmt: skip


class About(BaseModel):
    """The labels of a run's records, and its ranks."""

    model_config = ConfigDict(strict=True, extra="allow")

    policy: str | None = None
    peer: str | None = None
    mode: str | None = None
    seed: int | None = None
    world_size: int | None = None


class Status(BaseModel):
    """The keys of status.json that are read; a later version may write more."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    state: Literal["running", "done", "failed"]
    reason: str | None = None
    launch: str | None = None
    launcher: str | None = None
    attempt: int | None = None
    restart: str | None = None
    begun_by: str | None = None
    started: str | None = None
    finished: str | None = None
    wall_s: float | None = None
    boot: str | None = None
    uptime_s: float | None = None
    about: About | None = None
    total_steps: int | None = None
    num_steps: int | None = None
    sinks: dict[str, str] | None = None


def read_status(directory: Path) -> dict[str, Any]:
    """Return the run's status; ``{"state": "absent"}`` where there is none. Raises DataError for a damaged one.

    A process that is killed alone cannot write that it failed: a status of "running" while no process holds the folder
    is returned as "failed".
    """
    again = "delete this file and run it again, which goes on from a checkpoint if there is one, or run it again with"
    remedy = f"{again} --overwrite, or remove it (ddpsched runs rm {directory})"
    status = _stored(directory, remedy)
    while status["state"] == "running" and refusal(directory) is None:
        later = _stored(directory, remedy)
        if later == status:  # else it ended, or another began, between the two reads
            return {
                **status,
                "state": "failed",
                "reason": "it was killed: no process holds its lock",
                "wall_s": None,  # what is there was written when it began
            }
        status = later
    return status


def _stored(directory: Path, remedy: str) -> dict[str, Any]:
    path = directory / STATUS
    try:
        status: dict[str, Any] = decode_json(read_regular(path))
        Status.model_validate(status)
        return status
    except FileNotFoundError:
        return {"state": "absent"}
    except NotADirectoryError:
        another = "give the folder of a run, or outputs=... where one can be made"
        raise DataError(f"{directory} cannot be read: it, or one above it, is no folder; {another}") from None
    except OSError as error:
        fault = str(error.strerror)
    except ValidationError as error:
        fault = first_fault(error)
    except ValueError as error:
        fault = f"not JSON: {error}"
    raise DataError(f"{path}: cannot be read as the status of a run ({fault}); {remedy}")


def read_environment(directory: Path) -> dict[str, Any]:
    """Return a run's environment.json. Raises DataError, with what to do, where it is missing or damaged."""
    remedy = f"remove the run (ddpsched runs rm {directory}), and run it again"
    return read_json(directory / "environment.json", remedy)


@dataclass(frozen=True)
class Words:
    """The words of messages on what to give: those of the command line here; a loop of one's own has others."""

    another: str = "another name=..."
    overwrite: str = "--overwrite"
    elsewhere: str = ELSEWHERE  # for a link


class RunFolder:
    """A run's folder, which every rank knows; rank 0 begins it and writes what is written once.

    Nothing but the ``lock`` is changed before ``begin``, so a run that cannot start leaves an earlier one of the same
    name as it was. Raises DataError where the folder, its study's, or something in it is a link, a device or a pipe.
    """

    def __init__(
        self, path: Path, config: str, overwrite: bool, restart: bool = False, words: Words | None = None
    ) -> None:
        self.path, self._config, self._words = path, config, words or Words()
        if path.parent.is_symlink():  # the study's
            check_own(path.parent, self._words.elsewhere)
        check_own(path, self._words.elsewhere)
        # what the first attempt of a launch was to begin anew, or to replace, a further one goes on with
        self._overwrite = overwrite and not self._is_begun_by_this_launch()
        anew = self._overwrite or (restart and not self._is_begun_by_this_launch())
        self.lock = RunLock(path, anew, f"wait for it, end it, or give {self._words.another}")
        self.refuse_finished()
        self._boot, self._started_s = Host.here().boot, time.monotonic()
        self._notes = dict[str, Any]()

    def _stored(self) -> dict[str, Any]:
        again = f"give {self._words.overwrite}, or {self._words.another}"
        return _stored(self.path, f"delete this file, to go on from a checkpoint if there is one, or {again}")

    def may_go_on(self) -> bool:
        """Return whether the run goes on from a checkpoint, if there is one: as rank 0 has it, which holds the lock."""
        current = holder(self.path)
        return current is None or not current.anew

    def _is_begun_by_this_launch(self) -> bool:
        """Return whether torchrun has started these ranks again, and the run here was begun by the ones before."""
        if os.environ.get(RESTART, "0") == "0":
            return False
        return bool(self._stored().get("begun_by") == (launcher_id() or launch_id()))

    def refuse_finished(self) -> None:
        """Raise RunExistsError where a finished run is not to be replaced, RunFinishedError if this launch's."""
        if not self._overwrite and self.is_done_by_this_launch():
            raise RunFinishedError(f"{self.path} was finished by an earlier attempt of this launch")
        if not self._overwrite and self._stored()["state"] == "done":
            remedy = f"give {self._words.another}, or {self._words.overwrite} to run it again"
            raise RunExistsError(f"{self.path} holds a finished run; {remedy}")

    @contextmanager
    def held(self, is_main: bool) -> Iterator[None]:
        """Hold the lock meanwhile, on rank 0; raise RunHeldError, on every rank alike, where another run holds it."""
        if not is_main:
            self.lock.refuse()
            yield
            return
        self.lock.take()
        self.lock.set_attempt(self.lock.attempt)
        try:
            self.refuse_finished()  # it may have ended since the first look
            yield
        finally:
            self.lock.give_back()

    def begin(
        self,
        environment: dict[str, Any],
        goes_on: bool = False,
        about: dict[str, Any] | None = None,
        total_steps: int | None = None,
    ) -> None:
        """Write that this run is running, and remove every output of an earlier run, so that none is taken for its.

        ``goes_on``: it is that run, and keeps what it has. ``about``, ``total_steps``: for status.json, by which runs
        are listed: the labels of its records, its ranks; the steps that it is to have, estimated where B varies.
        """
        self._notes = {"about": about, "total_steps": total_steps}
        if not goes_on:
            self._give_up_checkpoints()
        self._write_status("running")  # where not even this can be written, nothing is left of the run
        (self.path / "logs").mkdir(exist_ok=True)
        for path in (path for pattern in OUTPUTS for path in self.path.glob(pattern) if not goes_on):
            remove(path)
        write_text(self.path / "config.toml", self._config)
        self.write_environment(environment)

    def _give_up_checkpoints(self) -> None:
        """Rename them, at once and first: whenever this process is killed, none outlives what it stands on."""
        checkpoints = self.path / "checkpoints"
        given_up = checkpoints.with_suffix(".part")
        remove(given_up)
        if checkpoints.exists():
            checkpoints.rename(given_up)

    def write_environment(self, environment: dict[str, Any]) -> None:
        """Write ``environment.json``, once more where a run has learnt more at its end."""
        write_json(self.path / "environment.json", environment)

    def add_evaluation(self, row: dict[str, Any]) -> None:
        """Append a line to ``evaluations.jsonl``."""
        with (self.path / "evaluations.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def note_sinks(self, states: dict[str, str]) -> None:
        """Write the states of its sinks into status.json, on rank 0. Raises OSError, of a full disk for example."""
        self._notes["sinks"] = states
        write_json(self.path / STATUS, {**self._stored(), "sinks": states})

    def done(self, num_steps: int) -> None:
        """Write that the run is done, after all else, and how many steps it has."""
        self._notes["num_steps"] = num_steps
        self._write_status("done")

    def is_done(self) -> bool:
        """Return whether status.json says "done" of this run, whichever rank asks."""
        status = self._stored()
        return status["state"] == "done" and status.get("attempt") == self.lock.attempt

    def is_done_by_this_launch(self) -> bool:
        """Return whether an attempt of this launch has finished the run: this one, or one before it.

        A machine may join an elastic launch whose work has just ended, and a rank that is lost after the end makes
        torchrun start all of them once more.
        """
        status, launcher = self._stored(), launcher_id()
        return status["state"] == "done" and status.get("launcher") == launcher is not None

    def failed(self, reason: str) -> None:
        """Write that the run failed. The first reason of any rank is kept, as later ones are its echoes.

        A finished run that still stands is kept as well, and nothing is written into a folder that another run has
        taken meanwhile.
        """
        with self.lock.may_write() as may_write:
            if not may_write or self._keeps_status():
                return
            try:
                self._write_status("failed", visible(reason, LONGEST_REASON, lines=True))
            except OSError as error:
                if full_disk(error) and not (self.path / STATUS).exists():
                    return  # it was full before the run began, of which nothing is there; the run's own error says so
                # on a full disk the old file is overwritten in place, which takes no new space; and in one piece, as
                # another rank may do the same at the same time
                text = json.dumps(self._facts("failed", reason[:500])).encode()  # at most 6 bytes a character
                with (self.path / STATUS).open("r+b", buffering=0) as file:
                    file.write(text.ljust(4096))  # longer than what stood there; JSON may end in blanks

    def _keeps_status(self) -> bool:
        """Return whether the status is of a run that is done, of another that lives, or this attempt's failure."""
        status = self._stored()
        same_restart = status.get("restart") == os.environ.get(RESTART) and self._is_since_start(status)
        same = status.get("attempt") == self.lock.attempt or same_restart
        failed_now = same and status.get("launch") == self.lock.launch and status["state"] == "failed"
        return status["state"] == "done" or self.lock.is_of_another(status.get("attempt")) or failed_now

    def _is_since_start(self, status: dict[str, Any]) -> bool:
        """Return whether a status was written since the ranks of this attempt started.

        Processes of one machine share a clock that is never set; what another machine wrote is compared by its date.
        """
        if self._boot is not None and self._boot == status.get("boot"):
            return bool((status.get("uptime_s") or 0.0) >= self._started_s - START_SKEW_S)
        since = datetime.now(UTC) - timedelta(seconds=time.monotonic() - self._started_s + START_SKEW_S)
        return (status.get("finished") or "") >= since.isoformat(timespec="microseconds")

    def _write_status(self, state: str, reason: str | None = None) -> None:
        write_json(self.path / STATUS, self._facts(state, reason))

    def _facts(self, state: str, reason: str | None) -> dict[str, Any]:
        # dates by the clock as it is now, which may have been set since the start; durations by one that is never set
        now, uptime_s = datetime.now(UTC), time.monotonic()
        wall_s = uptime_s - self._started_s
        before: dict[str, Any] = {} if state == "running" else self._stored()
        return {
            "state": state,
            "reason": reason,
            "launch": self.lock.launch,
            "launcher": launcher_id(),
            "attempt": self.lock.attempt,
            "restart": os.environ.get(RESTART),
            "begun_by": launcher_id() or launch_id() if state == "running" else before.get("begun_by"),
            "started": (now - timedelta(seconds=wall_s)).isoformat(timespec="microseconds"),
            "finished": None if state == "running" else now.isoformat(timespec="microseconds"),
            "wall_s": round(wall_s, 3),
            "boot": self._boot,  # of the machine, and seconds since: they order what its processes write
            "uptime_s": uptime_s,
            **{key: self._notes.get(key, before.get(key)) for key in NOTES},
        }
