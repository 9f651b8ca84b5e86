"""Launches: which runs of a study start together, and take turns, so that their times can be compared."""

from dataclasses import dataclass
from typing import Any

from analysis.settings import grouped
from ddpsched.config import RunConfig
from ddpsched.errors import ConfigError
from experiments.study import Compare, Study


@dataclass(frozen=True)
class Launch:
    """The runs of one setting and seed, which start as one and take turns; or a single run.

    ``how``: as in [compare]; "apart" where there is nothing to compare. ``group``: the names of all runs of the setting
    and seed.
    """

    runs: tuple[RunConfig, ...]
    how: str
    group: tuple[str, ...]
    compare: Compare

    @property
    def interleaved(self) -> bool:
        """Whether its runs start as one, and take turns."""
        return self.how == "interleaved"

    @property
    def about(self) -> dict[str, Any]:
        """The facts of the launch that environment.json has, for those who compare its times."""
        facts = {"how": self.how, "margin": self.compare.margin, "runs": self.group}
        return facts if self.interleaved else {**facts, "id": self.group[0]}

    @property
    def label(self) -> str:
        """The folder of a run that starts alone; of several, what they have in common."""
        first = self.runs[0]
        if not self.interleaved:
            return str(first.run_dir)
        return f"{first.run_dir} and {len(self.runs) - 1} more in turn"


def launches(study: Study) -> list[Launch]:
    """Return the launches of a study, in the order of their first runs.

    Simulated runs are apart, as their times are computed. Raises ConfigError where a setting has several arms and none
    of them is the baseline.
    """
    compare, runs = study.compare, study.runs
    configs = [run.model_dump() for run in runs]
    found: list[Launch] = []
    for places in grouped(configs, [run.seed for run in runs]):
        group = tuple(runs[place] for place in sorted(places))
        names = tuple(run.name for run in group)
        if compare.how == "apart" or group[0].executor.kind == "simulated" or len(group) == 1:
            found += [Launch((run,), "apart", names, compare) for run in group]
            continue
        if not any(run.aa for run in group):
            raise ConfigError(_without_baseline(compare, group))
        if compare.how == "interleaved":
            found.append(Launch(group, "interleaved", names, compare))
        else:  # the order is reversed from seed to seed, so that a drift over hours falls on all arms alike
            later = sum(group[0].seed != launch.runs[0].seed for launch in found) % 2
            found += [Launch((run,), "processes", names, compare) for run in (group[::-1] if later else group)]
    place = {run.name: place for place, run in enumerate(runs)}
    if compare.how == "processes":
        return found
    return sorted(found, key=lambda launch: place[launch.runs[0].name])


def _without_baseline(compare: Compare, group: tuple[RunConfig, ...]) -> str:
    first = group[0]
    return (
        f"study {first.study}: of {', '.join(run.name for run in group)} none is the baseline that the others are "
        f"compared with, compare.baseline = {compare.baseline!r}; name one of the grid's values by "
        "compare.baseline=NAME, or set compare.how=apart where only their training matters"
    )
