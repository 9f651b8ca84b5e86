"""The folder of one run: ``outputs/<study>/<name>``, and what stands in it.

``config.toml`` as resolved, ``environment.json``, ``status.json`` (the marker:
only "done" means done, whatever an exit code says), ``records-rank*.jsonl`` and
``records.parquet``, ``evaluations.jsonl``, ``logs/rank*.log``, ``figures/``.
"""

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ddpsched.config import RunConfig, dump
from ddpsched.errors import RunExistsError
from ddpsched.records import RECORDS, write_json

STATUS = "status.json"


def read_status(directory: Path) -> dict[str, Any]:
    """The run's status; ``{"state": "absent"}`` where there is none."""
    try:
        return json.loads((directory / STATUS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"state": "absent"}


class RunFolder:
    """Opened by every rank; rank 0 prepares it and writes what is written once."""

    def __init__(self, config: RunConfig, overwrite: bool, is_main: bool) -> None:
        self.path = config.run_dir
        if read_status(self.path)["state"] == "done" and not overwrite:
            raise RunExistsError(
                f"{self.path} holds a finished run; give another name=..., or --overwrite to run it again"
            )
        (self.path / "logs").mkdir(parents=True, exist_ok=True)
        self._started = datetime.now(UTC)
        if is_main:
            self._clear()
            (self.path / "config.toml").write_text(dump(config), encoding="utf-8")
            self._status("running")

    def _clear(self) -> None:
        """Remove what an earlier try left, so that no row of it is taken for one of this run."""
        for stale in (*self.path.glob("records-rank*.jsonl"), *self.path.glob("*.part"), self.path / RECORDS):
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
        """Keep the first reason that any rank gives: later ones are its echoes."""
        if read_status(self.path)["state"] != "failed":
            self._status("failed", reason)

    def _status(self, state: str, reason: str | None = None) -> None:
        now = datetime.now(UTC)
        finished = None if state == "running" else now.isoformat(timespec="seconds")
        write_json(
            self.path / STATUS,
            {
                "state": state,
                "reason": reason,
                "started": self._started.isoformat(timespec="seconds"),
                "finished": finished,
                "wall_s": round((now - self._started).total_seconds(), 3),
            },
        )
