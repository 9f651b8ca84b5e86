"""Launches: which runs of a study start together, and take turns, so that their times can be compared."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from analysis.settings import grouped
from ddpsched.config import RunConfig
from ddpsched.errors import ConfigError
from ddpsched.interleaved import order_of
from experiments.study import Compare, Study


@dataclass(frozen=True)
class Launch:
    """The runs of one setting and seed, which take turns step by step, or follow one another; or a single run.

    All of them run again where one has to, as times of different days are not compared. ``how``: as in [compare];
    "apart" where there is nothing to compare. ``group``: the names of all runs of the setting and seed. ``id``: of the
    launch that a process is part of, where each run is one.
    """

    runs: tuple[RunConfig, ...]
    how: str
    group: tuple[str, ...]
    compare: Compare
    id: str = ""

    @property
    def interleaved(self) -> bool:
        """Whether its runs start as one, and take turns."""
        return self.how == "interleaved"

    @property
    def is_lone(self) -> bool:
        """Whether it was to be compared, but has no other arm to be compared with."""
        return self.how == "apart" != self.compare.how and self.runs[0].executor.kind != "simulated"

    def processes(self) -> list["Launch"]:
        """Return what is started one after another: itself, or each run by itself, as parts of one launch."""
        if self.how != "processes":
            return [self]
        id_ = f"{datetime.now(UTC).isoformat(timespec='seconds')} {secrets.token_hex(4)}"
        return [replace(self, runs=(run,), id=id_) for run in self.runs]

    @property
    def about(self) -> dict[str, Any]:
        """The facts of the launch that environment.json has, for those who compare its times."""
        facts = {"how": self.how, "margin": self.compare.margin, "runs": self.group}
        return facts if self.interleaved else {**facts, "id": self.id}

    @property
    def label(self) -> str:
        """The folder of a run that starts alone; of several, what they have in common."""
        first, more = self.runs[0].run_dir, len(self.runs) - 1
        return str(first) if not more else f"{first} and {more} more {'in turn' if self.interleaved else 'after it'}"


def launches(study: Study) -> list[Launch]:
    """Return the launches of a study, in the order of their first runs.

    Simulated runs are apart, as their times are computed. Raises ConfigError where a setting has several arms and none
    of them is the baseline.
    """
    compare, runs = study.compare, study.runs
    configs = [run.model_dump() for run in runs]
    found: list[Launch] = []
    for places in grouped(configs, [(run.seed, run.steps) for run in runs]):
        group = tuple(runs[place] for place in sorted(places))
        names = tuple(run.name for run in group)
        if compare.how == "apart" or group[0].executor.kind == "simulated" or len(group) == 1:
            found += [Launch((run,), "apart", names, compare) for run in group]
            continue
        if not any(run.aa for run in group):
            raise ConfigError(_without_baseline(compare, group))
        order = _order(runs, group) if compare.how == "processes" else range(len(group))
        found.append(Launch(tuple(group[place] for place in order), compare.how, names, compare))
    place = {run.name: place for place, run in enumerate(runs)}
    return sorted(found, key=lambda launch: min(place[run.name] for run in launch.runs))


def _order(runs: Sequence[RunConfig], group: Sequence[RunConfig]) -> list[int]:
    """Return the order of processes: drawn at random, and reversed with the next seed (A B B A).

    So a drift over hours falls on all arms alike.
    """
    seeds = list(dict.fromkeys(run.seed for run in runs))
    return order_of(len(group), seeds.index(group[0].seed), seeds[0])


def _without_baseline(compare: Compare, group: tuple[RunConfig, ...]) -> str:
    first = group[0]
    return (
        f"study {first.study}: of {', '.join(run.name for run in group)} none is the baseline that the others are "
        f"compared with, compare.baseline = {compare.baseline!r}; name one of the grid's values by "
        "compare.baseline=NAME, or set compare.how=apart where only their training matters"
    )
