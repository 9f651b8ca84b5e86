"""The arms of a setting side by side: speed, padding, balance, order bias, and loss."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.batches import SUMS, batches
from analysis.curves import Curve, curve
from analysis.load import Run
from analysis.metrics import per_step, summarise
from analysis.ratios import baseline_of
from analysis.settings import Setting, settings
from analysis.stability import stability
from analysis.tables import plain

SMOOTHING = 0.1  # window of loss curves, as a share of the smallest amount that a run has trained on
KEPT = (  # of a run's metrics
    "num_steps", "samples_per_s", "tokens_per_s", "step_mean_s", "step_p95_s", "step_p99_s", "wait_share",
    "yardstick", "dev_loss", "dev_accuracy", "dev_majority", "dev_perplexity",
)  # fmt: skip
UNITS = {"num_samples": "samples", "num_tokens": "real tokens"}  # the unit of the amount trained on, by column
FROM_CURVES = ("loss_at_equal", "seen_at_equal_s", "loss_at_equal_s", "final_loss", "total_s")
AGAINST = ("speed_ratio", "speed_low", "speed_high", "verdict", "reason", "same_steps")
NOT_A_SUBSET = ("main", "default")  # the hub's names for the only part of a data set


@dataclass(frozen=True, eq=False)
class Arm:
    """One arm's runs in order of seed, their steps and (where a loss was measured) loss curves."""

    label: str
    runs: list[Run]
    steps: list[pd.DataFrame]
    curves: list[Curve | None]


@dataclass(frozen=True, eq=False)
class Compared:
    """The arms of one setting, and the budgets at which all of them have a loss.

    Attributes:
        setting: the runs.
        arms: the arms, static first.
        unit: "num_samples", or "num_tokens" where some arm's samples are not the documents.
        window: the number of units that a loss is the mean over.
        budget: the units of the run that has trained on fewest.
        budget_s: the seconds of the fastest run.
    """

    setting: Setting
    arms: list[Arm]
    unit: str
    window: float
    budget: float
    budget_s: float

    @property
    def slug(self) -> str:
        """The name of files, ``policies-sst2-virtual-g4``: unlike the setting's, it has the name of the data."""
        run = self.setting.runs[0]
        return f"{run.study}-{data_name(run)}-{run.mode}-g{run.config['world_size']}"

    @property
    def label(self) -> str:
        """The data, world size and mode; of a study ``policies-TOPIC``, the topic too."""
        run = self.setting.runs[0]
        _, _, topic = run.study.partition("-")
        about = f", {topic}" if topic else ""
        return f"{data_name(run)}, G = {run.config['world_size']}, {run.mode}{about}"


def data_name(run: Run) -> str:
    """Return the name of the data, ``sst2``, from the config: the same for a local copy of it."""
    data = run.config["data"]
    named = [data.get("subset"), data.get("name"), data.get("path"), "embedded"]
    name = next(name for name in named if name and name not in NOT_A_SUBSET)
    return Path(name).stem


def compare(setting: Setting) -> Compared:
    """Return the arms of a setting with their step tables, curves and budgets."""
    joined = any(run.config["data"].get("concatenate") for run in setting.runs)
    unit = "num_tokens" if joined else "num_samples"
    arms = []
    for label, runs in setting.arms.items():
        steps = [per_step(run.records, run.loss_per) for run in runs]
        arms.append(Arm(label, runs, steps, [curve(table, unit) for table in steps]))
    curves = [one for arm in arms for one in arm.curves if one is not None]
    budget = min((one.end for one in curves), default=float("nan"))
    budget_s = min((one.end_s for one in curves), default=float("nan"))
    return Compared(setting, arms, unit, SMOOTHING * budget, budget, budget_s)


def compare_all(runs: Sequence[Run]) -> list[Compared]:
    """Return each setting's arms: classifiers first, a data set's settings together."""

    def place(compared: Compared) -> tuple[bool, str, int, str]:
        run = compared.setting.runs[0]
        causal = run.config["model"].get("task") == "causal_lm"
        return causal, data_name(run), -int(run.config["world_size"]), compared.setting.slug

    return sorted(map(compare, settings(runs)), key=place)


def arm_row(arm: Arm, compared: Compared) -> dict[str, Any]:
    """Return the arm's figures, each the mean over its runs."""
    rows = []
    for run, steps, line in zip(arm.runs, arm.steps, arm.curves, strict=True):
        summary = summarise(run.records, run.evaluations, run.steps)
        row = {key: summary[key] for key in KEPT} | batches(steps) | {"num_samples": float(steps["num_samples"].sum())}
        figures = [float("nan")] * len(FROM_CURVES)
        if line is not None:
            at = [compared.budget, float(line.seen_at(compared.budget_s)), line.end]
            loss, loss_s, final = line.smoothed(at, compared.window)
            figures = [loss, at[1], loss_s, final, line.end_s]
        row |= stability(steps, line, compared.window)
        row |= dict(zip(FROM_CURVES, figures, strict=True))
        rows.append(row)
    means = {str(key): value for key, value in pd.DataFrame(rows).mean().items()}
    return {"arm": arm.label, "policy": arm.runs[0].policy, "num_runs": len(arm.runs), **means}


def against(arm: Arm, baseline: Arm, row: dict[str, Any]) -> dict[str, Any]:
    """Return real tokens a second over the baseline's, and whether each step has the baseline's samples.

    The latter is inferred from the sums of lengths to the powers 0, 1 and 2 in each step. ``row``: the arm's of
    ``ratios.judged``, whose ratio of times is the inverse of that of speeds.
    """
    mine, base = (each.steps[0][list(SUMS)] for each in (arm, baseline))
    speeds = [1 / row[key] for key in ("ratio", "high", "low")]  # the limits change places
    return dict(zip(AGAINST, (*speeds, row["verdict"], row["reason"], mine.equals(base)), strict=True))


def in_turn(setting: Setting) -> bool:
    """Return whether times of all arms may be held against each other: every seed's runs are of one launch."""
    launches = [run.observation for run in setting.runs]
    same = len(set(launches)) == len({seed for seed, _ in launches}) and all(found for _, found in launches)
    return same or setting.runs[0].mode == "simulated"


def tables(compared: Compared, judged: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one setting's comparison as plain values, NaN as None. ``judged``: its rows of ``ratios.judged``."""
    of = {row["arm"]: row for row in judged}
    baseline = next((arm for arm in compared.arms if arm.label == baseline_of(compared.setting)), None)
    rows = [
        arm_row(arm, compared)
        | (against(arm, baseline, of[arm.label]) if baseline and arm is not baseline else dict.fromkeys(AGAINST))
        for arm in compared.arms
    ]
    (budgets,) = plain(pd.DataFrame([{key: getattr(compared, key) for key in ("window", "budget", "budget_s")}]))
    runs = compared.setting.runs
    first = runs[0]
    return {
        "slug": compared.slug,
        "label": compared.label,
        "mode": first.mode,
        "task": first.config["model"].get("task", "classification"),
        "unit": compared.unit,
        "in_turn": in_turn(compared.setting),
        "baseline": None if baseline is None else baseline.label,
        **budgets,
        "arms": plain(pd.DataFrame(rows)),
        "runs": [{"run": run.name, "seed": run.seed} for run in runs],
        "windows": sorted({run.config["policy"]["prefetch"] for run in runs if run.policy == "minmax"}),
        "config": first.config,
        "environment": first.environment,
    }
