"""Launches and seeds that a file lacks: each is measured, added, and written as it ends."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from ddpsched.errors import ConfigError
from ddpsched.local_ranks import answers, run_ranks
from experiments.trainers import fixed_values
from experiments.trainers.arms import ODB, runnable
from experiments.trainers.dev_loss import EPOCHS, SHARE, measure_seed, measure_target
from experiments.trainers.flattening import why_not_flattened
from experiments.trainers.frozen import StepsFile, TargetFile, begun, environment, machine, write
from experiments.trainers.setting import GLOBAL_BATCH, RANKS, Setting
from experiments.trainers.step_times import measure_launch

LIMIT_S = 6 * 3600.0  # of one launch
Say = Callable[[str], None]
say: Say = partial(print, flush=True)


@dataclass(frozen=True)
class Wanted:
    """The options of a measurement: a setting, its arms, and the file that keeps the results, if any."""

    setting: Setting
    arms: Sequence[str]
    freeze: Path | None
    say: Say = say


def step_times(wanted: Wanted, steps: int, rounds: int, launches: int) -> StepsFile:
    """Return the step times of so many launches. Raises ConfigError for the file of another experiment."""
    arms, left_out = _checked(wanted)
    experiment = {**_shared(wanted, arms), "steps": steps, "rounds": rounds}
    file = begun(wanted.freeze, StepsFile, experiment)
    if file is None:
        fixed = _fixed(wanted, arms)
        file = StepsFile(
            experiment=experiment, environment=environment(), left_out=left_out, launches=[],
            notes=_notes(wanted, arms), **fixed,
        )  # fmt: skip
        write(wanted.freeze, file)
    setting = replace(wanted.setting, cost=file.cost, odb_tokens=file.odb_tokens)
    there = {launch.seed for launch in file.launches}
    for seed in [seed for seed in range(launches) if seed not in there]:
        begin = perf_counter()
        ranks = run_ranks(measure_launch, RANKS, setting, arms, steps, rounds, seed, timeout_s=120.0, limit_s=LIMIT_S)
        launch = answers(ranks)[0]
        file = file.model_copy(update={"launches": [*file.launches, launch]})
        write(wanted.freeze, file)
        wanted.say(f"launch {seed}: {perf_counter() - begin:.0f} s")
    return file.model_copy(update={"launches": [each for each in file.launches if each.seed < launches]})


def dev_loss_times(wanted: Wanted, seeds: int, every: int, target: float | None) -> TargetFile:
    """Return the times to a target dev loss of so many seeds; without a target, random's within a quarter of an epoch.

    Raises ConfigError for a target that random does not reach, for dev losses that are too rare, and for the file of
    another experiment.
    """
    _check_target(wanted.setting, every, target)
    arms, left_out = _checked(wanted)
    experiment = {**_shared(wanted, arms), "every": every, "given_target": target, "epochs": EPOCHS}
    file = begun(wanted.freeze, TargetFile, experiment)
    if file is None:
        found = answers(run_ranks(measure_target, RANKS, wanted.setting, every, target, limit_s=LIMIT_S))[0]
        if target is not None and max(found.least) > target:
            raise ConfigError(
                f"--target {target}: random's dev loss stays above it for {EPOCHS} epochs, at {max(found.least):.4f} "
                "or more; give a larger one, or leave it out"
            )
        file = TargetFile(
            experiment=experiment, environment=environment(), left_out=left_out, notes=_notes(wanted, arms),
            target=found.target if target is None else target, seeds=[], **_fixed(wanted, arms),
        )  # fmt: skip
        write(wanted.freeze, file)
        wanted.say(f"target: a dev loss of {file.target:.4f}")
    setting = replace(wanted.setting, cost=file.cost, odb_tokens=file.odb_tokens)
    there = {each.seed for each in file.seeds}
    for seed in [seed for seed in range(seeds) if seed not in there]:
        begin = perf_counter()
        ranks = run_ranks(measure_seed, RANKS, setting, arms, seed, file.target, every, limit_s=LIMIT_S)
        file = file.model_copy(update={"seeds": [*file.seeds, answers(ranks)[0]]})
        write(wanted.freeze, file)
        wanted.say(f"seed {seed}: {perf_counter() - begin:.0f} s")
    return file.model_copy(update={"seeds": [each for each in file.seeds if each.seed < seeds]})


def _shared(wanted: Wanted, arms: Sequence[str]) -> dict[str, Any]:
    return {**wanted.setting.identity(), "machine": machine(), "arms": list(arms)}


def _check_target(setting: Setting, every: int, target: float | None) -> None:
    most = int(SHARE * len(setting.samples.train) / GLOBAL_BATCH)
    if every > most:
        raise ConfigError(f"--every {every}: a quarter of an epoch has {most} steps; give at most as many")
    if target is not None and not 0 < target < math.inf:
        raise ConfigError(f"--target {target}: give a dev loss above 0, or leave it out")


def _checked(wanted: Wanted) -> tuple[list[str], dict[str, str]]:
    arms, left_out = runnable(wanted.arms)
    if left_out:
        wanted.say(f"{len(left_out)} of {len(wanted.arms)} arms left out:")
        for name, why in left_out.items():
            wanted.say(f"  {name}: {why}")
    return arms, left_out


def _fixed(wanted: Wanted, arms: Sequence[str]) -> dict[str, Any]:
    cost = fixed_values.measured_cost(wanted.setting) if "auto" in arms else None
    return {"cost": cost, "odb_tokens": fixed_values.odb_budget(wanted.setting) if ODB in arms else None}


def _notes(wanted: Wanted, arms: Sequence[str]) -> list[str]:
    return list(filter(None, [why_not_flattened(wanted.setting)])) if "padding_free" in arms else []
