"""The folder of one run: ``outputs/<study>/<name>``, and what stands in it.

``config.toml`` as resolved, ``environment.json``, ``status.json`` (the marker:
only "done" means done, whatever an exit code says), ``records-rank*.jsonl`` and
``records.parquet``, ``evaluations.jsonl``, ``logs/rank*.log``, ``figures/``; and
``lock`` while a run works in it.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ddpsched.errors import RunExistsError
from ddpsched.records import RECORDS, write_json
from ddpsched.run_lock import RunLock, refusal

STATUS = "status.json"
RESTART = "TORCHELASTIC_RESTART_COUNT"  # which may differ between machines, so ranks that have met do without
START_SKEW = timedelta(seconds=5)  # the ranks of one try do not start at the same moment


def read_status(directory: Path) -> dict[str, Any]:
    """The run's status; ``{"state": "absent"}`` where there is none.

    A process that is killed alone cannot write that it failed: what says "running" while nobody holds the folder
    has failed.
    """
    status = _stored(directory)
    while status["state"] == "running" and refusal(directory) is None:
        later = _stored(directory)
        if later == status:  # else it ended, or another began, between the two looks
            return {**status, "state": "failed", "reason": "it was killed and could not say why: nobody holds its lock"}
        status = later
    return status


def _stored(directory: Path) -> dict[str, Any]:
    try:
        return json.loads((directory / STATUS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"state": "absent"}


class RunFolder:
    """Known to every rank; rank 0 begins it and writes what is written once.

    Nothing but the lock is touched before ``begin``, so a run that cannot start leaves
    an earlier one of the same name as it was.
    """

    def __init__(self, path: Path, config: str, overwrite: bool) -> None:
        self.path, self._config, self._overwrite = path, config, overwrite
        self._lock = RunLock(self.path)
        self._refuse_finished()
        self._started = datetime.now(UTC)

    def _refuse_finished(self) -> None:
        if _stored(self.path)["state"] == "done" and not self._overwrite:
            raise RunExistsError(
                f"{self.path} holds a finished run; give another name=..., or --overwrite to run it again"
            )

    @contextmanager
    def held(self, is_main: bool) -> Iterator[None]:
        """Rank 0 locks the folder meanwhile; RunHeldError, on every rank alike, where another run has it."""
        if not is_main:
            self._lock.refuse()
            yield
            return
        self._lock.take()
        try:
            self._refuse_finished()  # it may have ended since the first look
            yield
        finally:
            self._lock.give_back()

    def await_rank_0(self, timeout_s: float) -> None:
        """On the other ranks: return once rank 0 has locked the folder."""
        self._lock.await_rank_0(timeout_s)

    @property
    def attempt(self) -> int:
        """The number of this run among all that ever had the folder, which rank 0 sends to the others (``meet``)."""
        return self._lock.attempt

    def meet(self, attempt: int) -> None:
        """Rank 0 of this run has told its attempt."""
        self._lock.meet(attempt)

    def let_go(self) -> None:
        """Give the lock back before the process ends where it stands."""
        self._lock.give_back()

    def begin(self, environment: dict[str, Any]) -> None:
        """Clear what an earlier run left and say that this one is running."""
        (self.path / "logs").mkdir(parents=True, exist_ok=True)
        self._status("running")
        self._clear()
        (self.path / "config.toml").write_text(self._config, encoding="utf-8")
        self.write_environment(environment)

    def log_path(self, rank: int) -> Path:
        return self.path / "logs" / f"rank{rank}.log"

    def _clear(self) -> None:
        """Remove what an earlier try left, so that no row of it is taken for one of this run."""
        patterns = ("records-rank*.jsonl", "timeline-rank*.jsonl", "*.part", RECORDS)
        for stale in (path for pattern in patterns for path in self.path.glob(pattern)):
            stale.unlink(missing_ok=True)
        for name in ("evaluations.jsonl", "environment.json"):
            (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(self.path / "figures", ignore_errors=True)

    def write_environment(self, environment: dict[str, Any]) -> None:
        write_json(self.path / "environment.json", environment)

    def add_evaluation(self, row: dict[str, Any]) -> None:
        with (self.path / "evaluations.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def done(self) -> None:
        """The last thing that a run writes."""
        self._status("done")

    def is_done(self) -> bool:
        """Whether this run has said so, on whichever rank."""
        status = _stored(self.path)
        return status["state"] == "done" and status.get("attempt") == self._lock.attempt

    def failed(self, reason: str) -> None:
        """Keep the first reason that any rank gives (later ones are its echoes), and a finished run that still stands.

        Nothing is written into a folder that another run has taken meanwhile.
        """
        with self._lock.in_hand() as may_write:
            if may_write and not self._has_said():
                self._write_failed(reason)

    def _has_said(self) -> bool:
        """Whether a run stands there that is done, or another's that lives, or this try has failed already."""
        status = _stored(self.path)
        since = (self._started - START_SKEW).isoformat(timespec="microseconds")
        same = status.get("attempt") == self._lock.attempt or status.get("restart") == os.environ.get(RESTART)
        of_this_try = same and status.get("launch") == self._lock.launch and status["state"] == "failed"
        others = self._lock.is_holders(status.get("attempt"))
        return status["state"] == "done" or others or (of_this_try and status["finished"] >= since)

    def _write_failed(self, reason: str) -> None:
        """On a full disk the old file is written over in place, which takes no new space, and in one piece, as another
        rank may do the same at the same time.
        """
        try:
            self._status("failed", reason)
        except OSError:
            text = json.dumps(self._facts("failed", reason[:500])).encode()  # at most 6 bytes a character
            with (self.path / STATUS).open("r+b", buffering=0) as file:
                file.write(text.ljust(4096))  # longer than what stood there; JSON may end in blanks

    def _status(self, state: str, reason: str | None = None) -> None:
        write_json(self.path / STATUS, self._facts(state, reason))

    def _facts(self, state: str, reason: str | None) -> dict[str, Any]:
        now = datetime.now(UTC)
        return {
            "state": state,
            "reason": reason,
            "launch": self._lock.launch,
            "attempt": self._lock.attempt,
            "restart": os.environ.get(RESTART),
            "started": self._started.isoformat(timespec="microseconds"),
            "finished": None if state == "running" else now.isoformat(timespec="microseconds"),
            "wall_s": round((now - self._started).total_seconds(), 3),
        }
