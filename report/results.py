"""Studies with their records, and files of benchmarks, of which a report is made, as ``Results``."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import compiled
from analysis.freeze import open_study, portable
from analysis.launches import is_timed, most_at_once, spans
from analysis.load import Study
from analysis.settings import Setting, settings
from analysis.step_parts import step_parts
from analysis.tables import study_tables
from ddpsched.errors import DataError
from ddpsched.records import read_json
from experiments.benchmarks.bench import with_ratios
from experiments.gpu.arm_tables import with_steps
from experiments.gpu.measure import STEPS
from experiments.reliability.findings import Finding, frozen
from experiments.trainers.frozen import Frozen, PeerRow, PeersFile
from experiments.trainers.frozen import read as read_trainers

EPOCH = "SST-2, 4 ranks, global batch 32"  # of experiments.trainers peers
STUDIES, TRAINERS, RELIABILITY = "studies", "trainers", "reliability"  # folders of what is frozen
SYNCHRONISERS, COMPILED, TWO_HOSTS, SIMULATOR = "synchronisers", "compiled", "two_hosts", "simulator"
AUTO = "auto"  # settings of experiments.benchmarks.auto
REPRODUCED = "reproduced"  # studies that report.reproduce ran again
WHAT_IF = "what_if/rows.json"  # the file of experiments.what_if --freeze
GPU, MEASURED = "gpu", "gpu.json"  # the folder of what was measured on GPUs, and the file of one of them

Tables = list[dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Measured:
    """A setting of a study, with its tables.

    Attributes:
        study: the study's name.
        setting: its runs by arm.
        table: of ``tables.study_tables``.
        sized: whether another setting of the study has another number of ranks or of samples.
    """

    study: str
    setting: Setting
    table: dict[str, Any]
    sized: bool = False

    @property
    def name(self) -> str:
        """The study's name, and what distinguishes this setting from its others."""
        size = f"G = {self.table['world_size']}, B = {self.table['global_batch']}"
        extra = self.setting.label.removeprefix(f"{size}, {self.table['mode']}").lstrip(", ")
        extra = extra.removeprefix(self.table["device"]).lstrip(", ")
        told = ", ".join(part for part in (size * self.sized, extra) if part)
        return f"{self.study} ({told})" if told else self.study

    @cached_property
    def parts(self) -> pd.DataFrame:
        """The table ``step_parts`` of its setting, which nobody changes."""
        return step_parts(self.setting)

    @property
    def apart(self) -> bool:
        """Whether each arm ran in processes of its own, so that none meets what another's allocator kept."""
        return not self.setting.took_turns

    @property
    def run_length(self) -> str:
        """The steps of its runs, by seed where these differ; empty where epochs are set."""
        steps: dict[int, list[int]] = {}
        for seed, number in sorted({(run.seed, run.config.get("steps") or 0) for run in self.setting.runs}):
            steps.setdefault(number, []).append(seed)
        steps.pop(0, None)
        if len(steps) < 2:
            return "".join(f"{number} step{'' if number == 1 else 's'}" for number in steps)
        words = [f"{number} steps (seed {', '.join(map(str, seeds))})" for number, seeds in steps.items()]
        return ", ".join(words)

    @property
    def hours(self) -> float:
        """The hours that its launches took, one after another."""
        times = [[datetime.fromisoformat(at) for at in span] for span in spans(self.setting.runs) if all(span)]
        return sum((end - begin).total_seconds() for begin, end in times) / 3600

    @property
    def most_at_once(self) -> int:
        """How many launches ran at one time."""
        return most_at_once(self.setting)

    @property
    def is_timed(self) -> bool:
        """Whether times of its arms may be compared."""
        return is_timed(self.setting)

    @property
    def num_launches(self) -> str:
        """How many launches there are, and how many of them ran at one time.

        These share a machine's memory and caches, if not its cores.
        """
        most = self.most_at_once
        return f"{len(spans(self.setting.runs))}, {f'up to {most} at one time' if most > 1 else 'one after another'}"

    @property
    def view(self) -> dict[str, Any]:
        """The table, with the environment and config of the run whose window and cost matter, where there is one."""
        runs = self.setting.runs
        shown = next((run for run in runs if run.policy != "static"), runs[0])
        windows = sorted({run.config["policy"]["prefetch"] for run in runs if run.policy == "minmax"})
        plans = {arm: runs[0] for arm, runs in self.setting.arms.items() if runs[0].policy != "static"}
        costs = {arm: str(run.config["cost"]["kind"]) for arm, run in plans.items() if "cost" in run.config}
        set_up = {"environment": shown.environment, "config": shown.config, "windows": windows, "costs": costs}
        for name in ("cores", "commit"):  # a study that was cut off may have gone on elsewhere, or with later code
            set_up[f"all_{name}"] = sorted({str(run.environment[name]) for run in runs if run.environment.get(name)})
        return portable(
            {
                **self.table,
                **set_up,
                "name": self.name,
                "study": self.study,
                "apart": self.apart,
                "is_timed": self.is_timed,
                "launches": self.num_launches,
                "run_length": self.run_length,
            }
        )


@dataclass(frozen=True, eq=False)
class Results:
    """All numbers of a report.

    Attributes:
        studies: with their records, by name.
        synchronisers: the tables of experiments.benchmarks.syncs.
        compiled: those of experiments.benchmarks.compiled, one for each model.
        two_hosts: those of experiments.benchmarks.two_hosts.
        simulator: those of experiments.benchmarks.simulator.
        reproduced: what report.reproduce found, one for each study that was run again, and device.
        autos: of experiments.benchmarks.auto, one of each setting.
        gpus: of experiments.gpu, one of each device.
        findings: of the checks of reliability, by name.
        trainers: the files of experiments.trainers, by name.
        what_if: of experiments.what_if, its rows, and of which calibration and network they are.
    """

    studies: Mapping[str, Study] = field(default_factory=dict)
    synchronisers: Tables = field(default_factory=list)
    compiled: Tables = field(default_factory=list)
    two_hosts: Tables = field(default_factory=list)
    simulator: Tables = field(default_factory=list)
    reproduced: Tables = field(default_factory=list)
    autos: Tables = field(default_factory=list)
    gpus: Tables = field(default_factory=list)
    findings: Mapping[str, Finding] = field(default_factory=dict)
    trainers: Mapping[str, Frozen] = field(default_factory=dict)
    what_if: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def measured(self) -> list[Measured]:
        """All settings of all studies, whose verdicts are one family."""
        found = [(name, each) for name, study in self.studies.items() for each in settings(study.runs)]
        tables = study_tables([setting for _, setting in found])
        sizes: dict[str, set[tuple[int, int]]] = {}
        for (name, _), table in zip(found, tables, strict=True):
            sizes.setdefault(name, set()).add((table["world_size"], table["global_batch"]))
        return [
            Measured(name, setting, table, sized=len(sizes[name]) > 1)
            for (name, setting), table in zip(found, tables, strict=True)
        ]

    @property
    def left_out(self) -> dict[str, str]:
        """The reasons for runs that are left out, by study and run."""
        return {
            f"{name}/{run}": portable(why)
            for name, study in self.studies.items()
            for run, why in study.left_out.items()
        }

    @property
    def planned_epoch(self) -> list[PeerRow]:
        """The rows of ``experiments.trainers peers`` for an epoch at the report's own set-up."""
        files = (each for each in self.trainers.values() if isinstance(each, PeersFile))
        return [row for file in files for row in file.traces.get(EPOCH, [])]

    @property
    def num_runs(self) -> int:
        """The runs of all studies, those left out included."""
        return sum(len(study.runs) + len(study.left_out) for study in self.studies.values())

    def only(self, name: str) -> "Results":
        """Return the results of one study alone."""
        return Results(studies={name: self.studies[name]})

    def of(self, *names: str) -> list[Measured]:
        """Return the settings of these studies, in this order, as far as they are there."""
        return [each for name in names for each in self.measured if each.study == name]


def collect(paths: Sequence[Path]) -> Results:
    """Return the results of studies, frozen or not, and of folders of experiments.gpu.

    Raises DataError where one of them has no finished run.
    """
    gpus = [read_gpu(path) for path in paths if (path / MEASURED).exists()]
    studies = {path.name: open_study(path) for path in paths if not (path / MEASURED).exists()}
    return Results(studies=studies, gpus=gpus)


def read(folder: Path) -> Results:
    """Return the results frozen in a folder. Raises DataError where there are none."""
    studies = {path.parent.name: open_study(path.parent) for path in sorted((folder / STUDIES).glob("*/runs.json"))}
    if not studies:
        raise DataError(f"no frozen results in {folder}; freeze a study: python -m analysis.freeze outputs/STUDY")
    hosts = [
        {**table, "links": [_with_ratios(link) for link in table["links"]]} for table in read_tables(folder / TWO_HOSTS)
    ]
    what_if = json.loads((folder / WHAT_IF).read_text(encoding="utf-8")) if (folder / WHAT_IF).exists() else {}
    return Results(
        studies=studies,
        autos=read_tables(folder / AUTO),
        gpus=[read_gpu(path.parent) for path in sorted((folder / GPU).glob(f"*/{MEASURED}"))],
        findings=frozen(folder / RELIABILITY),
        trainers={path.stem: read_trainers(path) for path in sorted((folder / TRAINERS).glob("*.json"))},
        what_if=what_if,
        compiled=read_compiled(folder / COMPILED),
        synchronisers=[_with_ratios(table) for table in read_tables(folder / SYNCHRONISERS)],
        two_hosts=hosts,
        simulator=read_tables(folder / SIMULATOR),
        reproduced=read_repeats(folder / REPRODUCED),
    )


def read_repeats(folder: Path) -> Tables:
    """Return what ``report.reproduce`` found of each repeat, and the folder of its records where they were kept."""
    paths = sorted(folder.glob("*.json"))
    records = [path.with_suffix("") if path.with_suffix("").is_dir() else None for path in paths]
    return [{**read_json(path), "records": each} for path, each in zip(paths, records, strict=True)]


def read_compiled(folder: Path) -> Tables:
    """Return the tables of compiled models, with what follows from their steps."""
    return [{**table, "policies": compiled.with_ratios(table["policies"])} for table in read_tables(folder)]


def _with_ratios(table: dict[str, Any]) -> dict[str, Any]:
    return {**table, "rows": with_ratios(table["rows"])}


def read_gpu(folder: Path) -> dict[str, Any]:
    """Return what was measured on a GPU, whose arms have what their steps say."""
    measured: dict[str, Any] = portable(read_json(folder / MEASURED))
    steps = pd.read_parquet(folder / STEPS)
    for name, part in measured["parts"].items():
        if "arms" in part:
            part["arms"] = with_steps(part["arms"], steps[steps["part"] == name])
    return measured


def read_tables(folder: Path) -> Tables:
    """Return the tables of a benchmark, a file for each model or device, by name."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


def table_file(folder: Path, model: str) -> Path:
    """Return the file of a model's table in a benchmark's folder."""
    return folder / f"{model.rpartition('/')[2]}.json"
