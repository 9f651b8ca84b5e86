"""A file of results as rows of a table, with intervals and verdicts computed anew."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from analysis.stats import Pairs, Ratio, floor_verdicts, ratio, verdicts
from analysis.style import STRONGEST
from experiments.benchmarks.bench import AA, Seconds, judged, text
from experiments.trainers.arms import ARMS, FIRST
from experiments.trainers.frozen import Frozen, PeerRow, PeersFile, SeedRuns, StepsFile, TargetFile, read

MIN_SEEDS = 2
OURS = ("balanced", "auto", "packed")  # whose gradient is static's


@dataclass(frozen=True)
class StepRow:
    """An arm's steps.

    ``epoch_s``: extrapolated, the seconds of a sample times the samples of an epoch. ``ratio``: of the time for equal
    samples over random's. ``error``: the largest of the launches; ``own_error``: with the loss as it comes.
    """

    arm: str
    step_s: float
    samples: float
    epoch_s: float
    ratio: str
    verdict: str
    error: float | None = None
    own_error: float | None = None


@dataclass(frozen=True)
class TargetRow:
    """An arm's way to the target: of seeds that reached it, and of means over these."""

    arm: str
    reached: int
    seeds: int
    seconds: float | None
    samples: float | None
    ratio: str
    samples_ratio: str
    verdict: str


def label(name: str) -> str:
    """Return an arm's name in tables."""
    return ARMS[name].label if name in ARMS else name


def rows_of(path: Path) -> list[StepRow] | list[TargetRow] | dict[str, list[PeerRow]]:
    """Return the rows of a file, whichever kind it is; of the peers' yardsticks a table a trace."""
    return rows(read(path))


def rows(file: Frozen) -> list[StepRow] | list[TargetRow] | dict[str, list[PeerRow]]:
    """Return the rows of results."""
    if isinstance(file, StepsFile):
        return step_rows(file)
    if isinstance(file, TargetFile):
        return target_rows(file)
    assert isinstance(file, PeersFile)
    return file.traces


def for_a_batch(file: StepsFile) -> list[Seconds]:
    """Return each launch's seconds of a global batch by arm.

    Of the launch's mean samples: what a few steps hold more or fewer is no difference of times.
    """
    steps, batch = file.experiment["steps"], file.experiment["global_batch"]
    return [
        {
            name: np.array(seconds) * batch / (np.mean(launch.samples[name]) / steps)
            for name, seconds in launch.seconds.items()
        }
        for launch in file.launches
    ]


def over_strongest(file: StepsFile) -> dict[str, tuple[Ratio, str]]:
    """Return the package's arms' time over that of the strongest batching of others, and the verdict above A/A."""
    launches = for_a_batch(file)
    if not launches or not {STRONGEST, FIRST, AA} <= launches[0].keys():
        return {}
    rng = np.random.default_rng(0)

    def over(arm: str, other: str) -> Ratio:
        return ratio([Pairs(each[arm], each[other]) for each in launches], rng)

    found = {arm: over(arm, STRONGEST) for arm in OURS if arm in launches[0]}
    floor = over(AA, FIRST)
    words = verdicts([(each, floor) for each in found.values()])
    return {arm: (each, word) for (arm, each), word in zip(found.items(), words, strict=True)}


def step_rows(file: StepsFile) -> list[StepRow]:
    """Return a row an arm; none without launches."""
    if not file.launches:
        return []
    steps, batch = file.experiment["steps"], file.experiment["global_batch"]
    per_step = {
        name: np.mean([np.mean(launch.samples[name]) / steps for launch in file.launches])
        for name in file.launches[0].seconds
    }
    (found,) = judged([for_a_batch(file)])
    return [
        StepRow(
            name,
            step_s=each.seconds * per_step[name] / batch,
            samples=float(per_step[name]),
            epoch_s=each.seconds * file.experiment["samples"] / batch,
            ratio=each.text,
            verdict=each.verdict,
            error=_worst([launch.errors.get(name) for launch in file.launches]),
            own_error=_worst([launch.own_errors.get(name) for launch in file.launches]),
        )
        for name, each in found.items()
    ]


def _worst(errors: Sequence[float | None]) -> float | None:
    there = [error for error in errors if error is not None]
    return max(there) if there else None


def target_rows(file: TargetFile) -> list[TargetRow]:
    """Return a row an arm; ratios to random over seeds, where both reached the target in all of them."""
    if not file.seeds:
        return []
    names = list(file.seeds[0].arms)
    seconds, samples = ({name: _ratio(file.seeds, name, key) for name in names} for key in ("seconds", "samples"))
    judged_names = [name for name in names if name not in (FIRST, AA)]
    words = dict(zip(judged_names, verdicts([(seconds[name], seconds[AA]) for name in judged_names]), strict=True))
    words |= {FIRST: "", AA: floor_verdicts([seconds[AA]])[0]}
    return [
        _target_row(name, file.seeds, seconds[name], samples[name], words[name], file.experiment["epochs"])
        for name in names
    ]


def _target_row(name: str, seeds: Sequence[SeedRuns], time: Ratio, seen: Ratio, word: str, epochs: int) -> TargetRow:
    runs = [each.arms[name] for each in seeds if each.arms[name].reached]
    missed = len(seeds) - len(runs)
    if missed:
        word = f"not reached in {epochs} epochs in {missed} of {len(seeds)} seeds"
    is_compared = name != FIRST and not math.isnan(time.value)
    return TargetRow(
        name,
        reached=len(runs),
        seeds=len(seeds),
        seconds=float(np.mean([run.seconds for run in runs])) if runs else None,
        samples=float(np.mean([run.samples for run in runs])) if runs else None,
        ratio=text(time) if is_compared else "",
        samples_ratio=text(seen) if is_compared else "",
        verdict=word,
    )


def in_one_order(file: TargetFile) -> dict[str, Ratio]:
    """Return the seconds to the target over static's of the arms that share its order and its gradient.

    They take the same steps to the target, so that no luck of an order is in these ratios.
    """
    if not file.seeds:
        return {}
    names = [name for name in OURS if {name, "static"} <= file.seeds[0].arms.keys()]
    return {name: _ratio(file.seeds, name, "seconds", "static") for name in names}


def _ratio(seeds: Sequence[SeedRuns], name: str, key: str, base: str = FIRST) -> Ratio:
    """Return the geometric mean over seeds of an arm's ratio to another's, with Student's 95 % interval."""
    pairs: list[Mapping[str, float]] = [
        {"x": getattr(each.arms[name], key), "y": getattr(each.arms[base], key)}
        for each in seeds
        if each.arms[name].reached and each.arms[base].reached
    ]
    if len(pairs) < len(seeds):
        return Ratio(math.nan, reason=f"the target was reached in {len(pairs)} of {len(seeds)} seeds")
    logs = np.log([each["x"] / each["y"] for each in pairs])
    value = math.exp(logs.mean())
    if len(logs) < MIN_SEEDS:
        return Ratio(value, reason=f"{len(logs)} seed, at least {MIN_SEEDS} are needed")
    error, freedom = float(logs.std(ddof=1)) / math.sqrt(len(logs)), len(logs) - 1
    reach = math.exp(float(stats.t.ppf(0.975, freedom)) * error)
    return Ratio(value, value / reach, value * reach, error, freedom)
