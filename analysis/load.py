"""The finished runs of a study, read from its folder.

Only runs whose status is "done" are read. The others are named with the reason why
they are left out, so that no table hides a run.
"""

from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.metrics import per_step
from analysis.run_files import clean, read_config, read_environment, read_evaluations, read_records, records_of
from ddpsched.errors import AGAIN, DataError
from ddpsched.launcher_log import LAUNCHER_LOGS, never_began
from ddpsched.own_folder import refuse_special
from ddpsched.records import StepRecord
from ddpsched.run_folder import STATUS, read_status

EVER = tuple(each.name for each in fields(StepRecord) if each.default is MISSING)  # columns that each record has
MEASURED = ("compute_s", "step_s")  # in each record of a run, simulated ones too
MARKS = ("config.toml", STATUS, LAUNCHER_LOGS)  # of a run's folder: it has one of these


@dataclass(frozen=True, eq=False)
class Run:
    """One finished run: ``records`` has a row per rank and step, ``evaluations`` a row per evaluation."""

    path: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    status: dict[str, Any]
    records: pd.DataFrame
    evaluations: pd.DataFrame

    @cached_property
    def steps(self) -> pd.DataFrame:
        """The table ``metrics.per_step`` of its records, which nobody changes."""
        return per_step(self.records)

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
        return "num_targets" if self.config["train"].get("target") in (None, "token_mean") else "num_samples"

    @property
    def launch(self) -> dict[str, Any]:
        """Its launch: the id, how the arms ran in it, and the margin. Empty of a run that ran alone."""
        return self.environment.get("launch") or {}

    @property
    def observation(self) -> tuple[int, str | None]:
        """Its seed and launch; runs of several arms that share both are one observation."""
        return self.seed, self.launch.get("id")

    @property
    def took_turns(self) -> bool:
        """Whether it shared its processes with other arms, step by step."""
        return self.launch.get("how") == "interleaved"

    @property
    def content(self) -> str | None:
        """The fingerprint of its training data's content; None where an earlier version recorded none."""
        return (self.environment.get("contents") or {}).get("data")

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


def is_run(folder: Path) -> bool:
    """Return whether a folder is a run's, begun or not."""
    return any(any(folder.glob(mark)) for mark in MARKS)


def load_study(path: Path) -> Study:
    """Read ``outputs/<study>``. Raises DataError where it has no finished run."""
    if not path.is_dir():
        raise DataError(f"{path}: there is no such folder; give a study's, outputs/STUDY")
    folders = sorted({found.parents[mark.count("/")] for mark in MARKS for found in path.glob(f"*/{mark}")})
    runs: list[Run] = []
    left_out: dict[str, str] = {}
    for folder in folders:
        try:
            if folder.is_symlink():  # figures are written into a run's folder
                raise DataError(f"it is a link to {folder.readlink()}; copy the run, or analyse it where it is")
            runs.append(load_run(folder))
        except DataError as error:
            left_out[folder.name] = str(error)
    if not runs:
        why = "; ".join(f"{name}: {reason}" for name, reason in left_out.items()) or "it has no run folders"
        raise DataError(f"study {path}: no finished run ({why}); run the study first")
    return Study(path, tuple(runs), left_out)


def load_run(path: Path) -> Run:
    """Read one run's folder. Raises DataError where it is not done or cannot be read."""
    if not path.is_dir():
        raise DataError(f"{path}: there is no such folder; give a run's, outputs/STUDY/RUN")
    refuse_special(path)
    status = read_status(path)
    if status["state"] == "absent":
        runs = "give a run's folder, outputs/STUDY/RUN" if any(path.glob(f"*/{STATUS}")) else "so it never started"
        raise DataError(never_began(path) or f"{path}: it has no {STATUS}; {runs}")
    if status["state"] != "done":
        raise DataError(": ".join(filter(None, (status["state"], status.get("reason")))))
    config, environment = read_config(path), read_environment(path)
    table, source = read_records(path), records_of(path)
    if missing := [name for name in EVER if name not in table]:
        raise DataError(f"{source}: records lack {', '.join(missing)}; {AGAIN}")
    records = clean(table, source)
    _check_agreement(source, config, records.iloc[0])
    if "loop" not in environment:  # what a loop of one's own measures is up to it, and so is when it ends
        _check_measured(source, records)
        _check_length(source, status.get("num_steps") or config.get("steps"), records)
    _check_ranks(source, config, records)
    return Run(path, config, environment, status, records, read_evaluations(path))


def _check_agreement(source: Path, config: dict[str, Any], record: Any) -> None:
    """Raise DataError where the records are not of this config. Those of policy auto are of the one that it took."""
    labels = {"world_size": config["world_size"], "seed": config["seed"], "mode": config["executor"]["kind"]}
    if config["policy"]["kind"] != "auto":
        labels["policy"] = config["policy"]["kind"]
    for name, wanted in labels.items():
        if record[name] != wanted and not pd.isna(record[name]):
            raise DataError(f"{source}: {name} = {record[name]}, and {wanted} in config.toml; {AGAIN}")


def _check_measured(source: Path, records: pd.DataFrame) -> None:
    """Raise DataError where a time is missing that every run has, as in records of another version."""
    for name in MEASURED:
        if absent := int(records[name].isna().sum()):
            raise DataError(f"{source}: {name} is missing in {absent} of {len(records)} records; {AGAIN}")


def _check_length(source: Path, wanted: int | None, records: pd.DataFrame) -> None:
    """Raise DataError where the last steps are missing, as nothing else tells that they are."""
    steps = records["step"].nunique()
    if wanted and steps < wanted:
        raise DataError(f"{source}: it has {steps} of {wanted} steps; {AGAIN}")


def _check_ranks(source: Path, config: dict[str, Any], records: pd.DataFrame) -> None:
    """Raise DataError where records of some ranks are missing."""
    ranks = records.groupby("step").size()
    if (few := ranks[ranks < config["world_size"]]).size:
        step, size = few.index[0], config["world_size"]
        raise DataError(f"{source}: step {step} has records of {few.iloc[0]} of {size} ranks; {AGAIN}")
