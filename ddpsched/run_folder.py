"""The folder of one run: ``outputs/<study>/<name>``, and what stands in it.

``config.toml`` as resolved, ``environment.json``, ``status.json`` (the marker:
only "done" means done, whatever an exit code says), ``records-rank*.jsonl`` and
``records.parquet``, ``evaluations.jsonl``, ``logs/rank*.log``, ``figures/``.
"""

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ddpsched.config import RunConfig, dump
from ddpsched.errors import RunExistsError
from ddpsched.records import RECORDS, write_json

STATUS = "status.json"
START_SKEW = timedelta(seconds=5)  # the ranks of one try do not start at the same moment


def read_status(directory: Path) -> dict[str, Any]:
    """The run's status; ``{"state": "absent"}`` where there is none."""
    try:
        return json.loads((directory / STATUS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"state": "absent"}


class RunFolder:
    """Known to every rank; rank 0 begins it and writes what is written once.

    Nothing is touched before ``begin``, so a run that cannot start leaves an
    earlier one of the same name as it was.
    """

    def __init__(self, config: RunConfig, overwrite: bool) -> None:
        self.path, self._config = config.run_dir, config
        if read_status(self.path)["state"] == "done" and not overwrite:
            raise RunExistsError(
                f"{self.path} holds a finished run; give another name=..., or --overwrite to run it again"
            )
        self._started = datetime.now(UTC)

    def begin(self, environment: dict[str, Any]) -> None:
        """Clear what an earlier run left and say that this one is running."""
        (self.path / "logs").mkdir(parents=True, exist_ok=True)
        self._status("running")
        self._clear()
        (self.path / "config.toml").write_text(dump(self._config), encoding="utf-8")
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

    def failed(self, reason: str) -> None:
        """Keep the first reason that any rank gives (later ones are its echoes), and a finished run that still stands.

        On a full disk the old file is written over in place, which takes no new space, and in one piece, as another
        rank may do the same at the same time.
        """
        status = read_status(self.path)
        of_this_try = (self._started - START_SKEW).isoformat(timespec="microseconds")
        if status["state"] == "done" or (status["state"] == "failed" and status["finished"] >= of_this_try):
            return
        self.path.mkdir(parents=True, exist_ok=True)
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
            "started": self._started.isoformat(timespec="microseconds"),
            "finished": None if state == "running" else now.isoformat(timespec="microseconds"),
            "wall_s": round((now - self._started).total_seconds(), 3),
        }
