"""The rows of arms that ran in turn: times, tokens, memory, and what policy auto had predicted of them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ddpsched.config import RunConfig
from ddpsched.records import read_json
from experiments.gpu.settings import AGAIN

WARM_UP = 0.15  # of the steps, at least two


def rows(arms: Mapping[str, RunConfig], failed: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return a row for each arm, static first. ``failed``: reasons by the name of a run.

    ``throughput`` is real tokens a second over static's, all steps after the warm-up together, so that arms whose
    global batch varies stand beside the others; ``low`` and ``high`` are the middle half of single steps. All three are
    null where static failed. ``predicted`` is static's step time over the arm's, by policy auto of the same launch.
    """
    found: list[dict[str, Any]] = []
    predicted, static, static_mean = _predicted(arms), np.zeros(0), 0.0
    for name, config in arms.items():
        if config.name in failed:
            found.append({"arm": name, "failed": failed[config.name]})
            continue
        records = pd.read_parquet(config.run_dir / "records.parquet")
        environment = read_json(config.run_dir / "environment.json")
        steps = records.groupby("step").agg(step_s=("step_s", "max"), tokens=("num_tokens", "sum"))
        steps = steps.iloc[max(2, round(WARM_UP * len(steps))) :]
        rate = (steps["tokens"] / steps["step_s"]).to_numpy()
        mean = float(steps["tokens"].sum() / steps["step_s"].sum())
        if not found:
            static, static_mean = rate, mean
        over = dict.fromkeys(("throughput", "low", "high"))
        if len(static):
            both = min(len(rate), len(static))
            low, high = np.percentile(rate[:both] / static[:both], (25, 75))
            over = {"throughput": mean / static_mean, "low": float(low), "high": float(high)}
        chosen = environment.get("auto", {}).get("chosen")
        peaks = records["peak_memory_bytes"].dropna()
        made = environment.get("compile", {})
        found.append({
            "arm": name, "chosen": chosen, "steps": len(steps), "step_s": float(steps["step_s"].mean()),
            "tokens_per_s": mean, **over,
            "predicted": predicted.get(chosen or name),
            "padding": float(records["padded_tokens"].sum() / records["num_tokens"].sum()),
            "peak_memory_bytes": int(peaks.max()) if len(peaks) else None,
            "compiling_s": made.get("seconds"), "compile_failed": made.get("failed"),
            "within_steps": int(records["recompiled"].notna().sum()),
        })  # fmt: skip
    return found


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
