"""The finished runs of a study, read from its folder.

Only runs whose status is "done" are read. The others are named with the reason why
they are left out, so that no table hides a run.
"""

import json
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from ddpsched.errors import DataError
from ddpsched.records import COLUMNS, RECORDS
from ddpsched.run_folder import read_status

# Columns that all metrics need; any other may be missing or null.
REQUIRED = ("step", "rank", "world_size", "num_samples", "global_batch", "num_tokens", "padded_tokens")
TEXT = ("run", "mode", "policy", "plan_hash")
EVALUATION_COLUMNS = ("step", "loss", "accuracy", "perplexity", "num_samples", "majority")


@dataclass(frozen=True, eq=False)
class Run:
    """One finished run: ``records`` has a row per rank and step, ``evaluations`` a row per evaluation."""

    path: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    status: dict[str, Any]
    records: pd.DataFrame
    evaluations: pd.DataFrame

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.path.name

    @property
    def study(self) -> str:
        """The name of its study."""
        return str(self.config["study"])

    @property
    def policy(self) -> str:
        """The kind of its policy."""
        return str(self.config["policy"]["kind"])

    @property
    def mode(self) -> str:
        """The executor: distributed, virtual or simulated."""
        return str(self.config["executor"]["kind"])

    @property
    def seed(self) -> int:
        """Its seed."""
        return int(self.config["seed"])

    @property
    def loss_per(self) -> str:
        """The column of the count that a record's loss is the mean over: label tokens, or samples of equal weight."""
        return "num_samples" if self.config["train"].get("target") == "sample_mean" else "num_targets"

    @property
    def device(self) -> str:
        """The device that it ran on."""
        return str(self.environment.get("device", "unknown device"))


@dataclass(frozen=True, eq=False)
class Study:
    """The finished runs of one folder, and the others by name with the reason why they are left out."""

    path: Path
    runs: tuple[Run, ...]
    left_out: dict[str, str] = field(default_factory=dict)


def load_study(path: Path) -> Study:
    """Read ``outputs/<study>``. Raises DataError where it has no finished run."""
    folders = sorted(child.parent for child in path.glob("*/config.toml"))
    runs: list[Run] = []
    left_out: dict[str, str] = {}
    for folder in folders:
        try:
            runs.append(load_run(folder))
        except DataError as error:
            left_out[folder.name] = str(error)
    if not runs:
        why = "; ".join(f"{name}: {reason}" for name, reason in left_out.items()) or "it has no run folders"
        raise DataError(f"study {path}: no finished run ({why}); run the study first")
    return Study(path, tuple(runs), left_out)


def load_run(path: Path) -> Run:
    """Read one run's folder. Raises DataError where it is not done or cannot be read."""
    try:
        status = read_status(path)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"status.json cannot be read: {error}") from None
    if status["state"] == "absent":
        raise DataError("it has no status.json, so it never started")
    if status["state"] != "done":
        raise DataError(": ".join(filter(None, (str(status.get("state")), status.get("reason")))))
    try:
        config = tomllib.loads((path / "config.toml").read_text(encoding="utf-8"))
        environment = json.loads((path / "environment.json").read_text(encoding="utf-8"))
        records = clean(pd.read_parquet(path / RECORDS))
        evaluations = _evaluations(path / "evaluations.jsonl")
    except DataError:
        raise
    except (OSError, ValueError) as error:  # pyarrow's and both decoders' errors are ValueErrors
        raise DataError(f"done, but it cannot be read: {error}") from None
    return Run(path, config, environment, status, records, evaluations)


def clean(records: pd.DataFrame) -> pd.DataFrame:
    """Return all columns of the schema, in (step, rank) order; numbers as numbers, null as NaN.

    Raises DataError where a required column is missing or there are no rows.
    """
    missing = [name for name in REQUIRED if name not in records]
    if missing:
        raise DataError(f"records lack the columns {', '.join(missing)}")
    if records.empty:
        raise DataError("records hold no rows")
    table = records.reindex(columns=list(COLUMNS))
    for name in COLUMNS:
        if name in REQUIRED:
            table[name] = table[name].astype("int64")
        elif name not in TEXT:
            table[name] = pd.to_numeric(table[name]).astype("float64")
    return table.sort_values(["step", "rank"], ignore_index=True)


def _evaluations(path: Path) -> pd.DataFrame:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    table = pd.DataFrame([json.loads(line) for line in lines if line.strip()])
    return table.reindex(columns=list(EVALUATION_COLUMNS)).astype("float64").sort_values("step", ignore_index=True)
