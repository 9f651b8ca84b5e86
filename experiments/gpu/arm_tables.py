"""The rows of arms that ran in turn: times, tokens, memory, and what policy auto had predicted of them."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ddpsched.config import RunConfig
from ddpsched.records import RECORDS, StepRecord, read_json, read_lines
from experiments.gpu.settings import AGAIN

WARM_UP = 0.15  # of the steps, at least one, in which kernels are loaded
KEPT = [
    "step", "rank", "num_samples", "num_tokens", "padded_tokens", "num_microbatches", "compute_s", "step_s",
    "peak_memory_bytes", "recompiled",
]  # fmt: skip


def steps_of(arms: Mapping[str, RunConfig]) -> pd.DataFrame:
    """Return the records of all arms, one under another, with their names."""
    return pd.concat([_records(config.run_dir).assign(arm=name)[["arm", *KEPT]] for name, config in arms.items()])


def facts(arms: Mapping[str, RunConfig], failed: Mapping[str, str], cut_off: str = "") -> list[dict[str, Any]]:
    """Return a row for each arm, static first, with all but what its steps say.

    ``failed``: reasons by the name of a run. ``cut_off``: why all ended, which counts where an arm has no step.
    ``predicted``: static's step time over the arm's, by policy auto of the same launch.
    """
    found, predicted = list[dict[str, Any]](), _predicted(arms)
    for name, config in arms.items():
        file = config.run_dir / "environment.json"
        environment = read_json(file) if file.exists() else {}
        chosen = environment.get("auto", {}).get("chosen")
        made = environment.get("compile", {})
        row = {
            "arm": name, "chosen": chosen, "predicted": predicted.get(chosen or name),
            "compiling_s": made.get("seconds"), "compile_failed": made.get("failed"),
        }  # fmt: skip
        why = failed.get(config.name, cut_off)
        found.append(row | ({"failed": why} if why else {}))
    return found


def with_steps(rows: list[dict[str, Any]], steps: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a part's arms with what their steps say; an arm that has none after its warm-up failed.

    ``steps``: of all arms, as ``steps_of`` returns them. ``throughput``: the arm's real tokens a second over static's,
    over the steps that both have; null where static has no step. ``low``, ``high``: the middle half of single steps'.
    ``step_s``: the median of a step, of the slowest rank each; ``mean_step_s``: the mean, with the rare slow steps.
    """
    found, static = list[dict[str, Any]](), pd.DataFrame({"tokens": [], "step_s": []})
    for row in rows:
        records = steps[steps["arm"] == row["arm"]]
        first = max(1, round(WARM_UP * records["step"].nunique()))
        each = records.groupby("step").agg(step_s=("step_s", "max"), tokens=("num_tokens", "sum")).iloc[first:]
        if each.empty:
            found.append(row | {"failed": row.get("failed", "it has no step after its warm-up")})
            continue
        static = static if found else each
        over = _throughput(each, static)
        peaks = records["peak_memory_bytes"].dropna()
        numbers = {
            "steps": len(each), "step_s": float(each["step_s"].median()), "mean_step_s": float(each["step_s"].mean()),
            "tokens_per_s": float(each["tokens"].sum() / each["step_s"].sum()),
            **dict(zip(("low", "throughput", "high"), over, strict=True)),
            "padding": float(records["padded_tokens"].sum() / records["num_tokens"].sum()),
            "peak_memory_bytes": int(peaks.max()) if len(peaks) else None,
            "within_steps": int(records["recompiled"].notna().sum()),
        }  # fmt: skip
        found.append({key: value for key, value in row.items() if key != "failed"} | numbers)
    return found


def _throughput(arm: pd.DataFrame, static: pd.DataFrame) -> list[float | None]:
    """Return real tokens a second over static's: the first quartile of single steps, all of them, the third one."""
    both = min(len(arm), len(static))
    if not both:
        return [None] * 3
    mine, other = (
        each.iloc[:both].to_numpy(dtype=float) for each in (arm[["tokens", "step_s"]], static[["tokens", "step_s"]])
    )
    low, high = np.percentile(mine[:, 0] / mine[:, 1] / (other[:, 0] / other[:, 1]), (25, 75)).tolist()
    (tokens, seconds), (of, took) = mine.sum(0), other.sum(0)
    return [low, float(tokens / seconds / (of / took)), high]


def _records(run_dir: Path) -> pd.DataFrame:
    """Return the records of a run, of one that did not end as well; none where it did not begin."""
    file = run_dir / RECORDS
    if file.exists():
        return pd.read_parquet(file)
    return pd.DataFrame(read_lines(run_dir), columns=[each.name for each in fields(StepRecord)])


def _predicted(arms: Mapping[str, RunConfig]) -> dict[str, float]:
    """Return the throughputs over static's that auto predicted, by arm; {} where it did not run."""
    for config in arms.values():
        file = config.run_dir / "environment.json"
        if config.policy.kind == "auto" and file.exists():
            ranking = read_json(file).get("auto", {}).get("ranking", [])
            found = {str(each["name"]): 1 / float(each["ratio"]) for each in ranking}
            again = {AGAIN: found["static"]} if "static" in found else {}
            return found | again
    return {}
