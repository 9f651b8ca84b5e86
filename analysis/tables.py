"""Metrics of a whole setting as tables: a row per run, a row per arm, a row per ratio."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.load import Run
from analysis.metrics import COUNTED, TIMED, length_distances, paired, ratio_of_means, summarise
from analysis.ratios import baseline_of, between_steps, compare, judged
from analysis.settings import AA, Setting, couples, partner
from ddpsched.records import write_json
from ddpsched.visible_text import csv_cell

JUDGED = "step_s"  # the time that verdicts are about
LEARNT = ("dev_loss", "dev_accuracy", "dev_majority", "dev_perplexity", "loss_distance")


def run_table(setting: Setting) -> pd.DataFrame:
    """Return one row per run: its name, arm, policy and seed, then its metrics."""
    rows: list[dict[str, Any]] = []
    for arm, runs in setting.arms.items():
        for run in runs:
            row: dict[str, Any] = {"run": run.name, "arm": arm, "policy": run.policy, "seed": run.seed}
            row |= summarise(run.records, run.evaluations, run.steps)
            static = partner(run, setting.runs)
            row["partner"] = static.name if static else None
            if static:
                row |= length_distances(run.records, static.records, run.steps, static.steps)
                row |= loss_distances(run.steps, static.steps)
            rows.append(row)
    longest = max(row["num_steps"] for row in rows)
    for row in rows:
        if row["num_steps"] < longest:  # a seed of few steps measures times, and has not learnt as much
            row |= dict.fromkeys(LEARNT, math.nan)
    return pd.DataFrame(rows)


def arm_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per arm: the number of its runs (seeds), and each metric's mean over them."""
    numbers = runs.groupby("arm", sort=False).mean(numeric_only=True).drop(columns="seed")
    numbers.insert(0, "num_runs", runs.groupby("arm", sort=False).size())
    numbers.insert(0, "policy", runs.groupby("arm", sort=False)["policy"].first())
    return numbers.reset_index()


def ratio_table(setting: Setting, verdicts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per arm, baseline and per-step column: mean(arm) / mean(baseline), paired by seed and step.

    Times are compared over launches. Counts of tokens do not depend on the machine: their intervals are over steps.
    ``verdicts``: the rows of ``ratios.judged``, which stand in for theirs here.
    """
    rng = np.random.default_rng(0)
    rows = list(verdicts)
    first = baseline_of(setting)
    for baseline in dict.fromkeys([first, *(["minmax"] if "minmax" in setting.arms else [])]):
        arms = [arm for arm in setting.arms if arm != baseline and (baseline == first or arm not in (first, AA))]
        for arm in arms if baseline else []:
            assert baseline is not None
            mine, base = _same_seeds(setting.arms[arm], setting.arms[baseline])
            if not mine:
                continue
            for column in TIMED:
                if (baseline, column) != (first, JUDGED):
                    rows.append(compare(setting, arm, baseline, column, rng).row())
            for column in COUNTED:
                x, y = paired(mine, base, column)
                ratio, low, high = ratio_of_means(x, y, rng)
                row = {"arm": arm, "baseline": baseline, "column": column}
                rows.append(row | {"ratio": ratio, "low": low, "high": high, "num_steps": len(x)})
    return rows


def _same_seeds(mine: Sequence[Run], others: Sequence[Run]) -> tuple[list[pd.DataFrame], list[pd.DataFrame]]:
    both = couples(mine, others)
    return [a.steps for a, _ in both], [b.steps for _, b in both]


def loss_distances(steps: pd.DataFrame, static: pd.DataFrame) -> dict[str, float]:
    """Return the mean over steps of |loss - static's| over static's mean loss, of the first ten steps and of all.

    Runs with equal gradients start with equal losses. Then dropout, which draws other
    masks for other micro-batches, and rounding make them differ.
    """
    both = pd.concat({"ours": steps["loss"], "static": static["loss"]}, axis=1, join="inner")
    return {
        name: float((part["ours"] - part["static"]).abs().mean() / part["static"].mean())
        for name, part in (("loss_distance_early", both.iloc[:10]), ("loss_distance", both))
    }


def study_tables(settings: Sequence[Setting]) -> list[dict[str, Any]]:
    """Return the tables of all settings of a page, whose verdicts are one family."""
    rows = judged(settings, JUDGED)
    return [setting_tables(setting, each) for setting, each in zip(settings, rows, strict=True)]


def setting_tables(setting: Setting, verdicts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the three tables of one setting as plain values, NaN as None. ``verdicts``: as ``ratios.judged`` gives."""
    runs = run_table(setting)
    first = setting.runs[0]
    return {
        "slug": setting.slug,
        "label": setting.label,
        "mode": first.mode,
        "world_size": int(first.config["world_size"]),
        "global_batch": int(first.config["global_batch"]),
        "device": first.device,
        "runs": plain(runs),
        "arms": plain(arm_table(runs)),
        "baseline": baseline_of(setting),
        "between_steps": between_steps(setting),
        "ratios": plain(ratio_table(setting, verdicts)),
    }


def plain(table: pd.DataFrame | Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows as dicts of JSON values, NaN as None."""

    def value(cell: Any) -> Any:
        if cell is None or (isinstance(cell, float) and not math.isfinite(cell)):
            return None
        return cell.item() if isinstance(cell, np.generic) else cell

    rows = table.astype(object).to_dict(orient="records") if isinstance(table, pd.DataFrame) else table
    return [{str(key): value(cell) for key, cell in row.items()} for row in rows]


def write(folder: Path, tables: Sequence[dict[str, Any]], left_out: dict[str, str]) -> None:
    """Write ``tables.json`` with all tables, and ``tables.csv`` with a row per run."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "tables.json", {"settings": list(tables), "left_out": left_out})
    rows = [{"setting": table["slug"], **row} for table in tables for row in table["runs"]]
    safe = [{csv_cell(key): csv_cell(value) for key, value in row.items()} for row in rows]
    pd.DataFrame(safe).to_csv(folder / "tables.csv", index=False)


def read(folder: Path) -> dict[str, Any]:
    """Return the content of ``tables.json``, as ``write`` wrote it."""
    content: dict[str, Any] = json.loads((folder / "tables.json").read_text(encoding="utf-8"))
    return content
