"""Mean steps of an arm, split into what their time went to; the parts sum to the mean step exactly.

Rank q is the one whose compute is the longest of a step. Over ranks, mean compute = useful + padding + fixed::

    step = useful + padding + fixed + imbalance + exposed + planning + optimizer + rest

    fixed       mean over ranks of what micro-batches take whatever their tokens: their number times the constant of
                the baseline's least-squares line of compute over padded tokens, but not more than compute
    useful      mean over ranks of (compute - fixed) * real tokens / padded tokens
    padding     mean over ranks of (compute - fixed) * (1 - real tokens / padded tokens)
    imbalance   compute of rank q - mean compute
    exposed     q's wait after the last rank was ready: communication that no rank's compute hides
    planning    q's wait for its plan; on virtual and simulated ranks that is no part of a step
    optimizer   q's update of the weights
    rest        the step's remainder: votes, ranks that began late, and what was not measured of the above
"""

import numpy as np
import pandas as pd

from analysis.load import Run
from analysis.metrics import line, warmup_steps
from analysis.ratios import baseline_of
from analysis.settings import AA, Setting
from analysis.waits import NEEDED, waits

PARTS = ("useful_s", "fixed_s", "padding_s", "imbalance_s", "exposed_s", "planning_s", "optimizer_s", "rest_s")
WHOLE = "compute_s"  # in the place of the first three, where they are not told apart


def undivided(parts: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of ``step_parts`` with useful, fixed and padding as one part, ``WHOLE``: the mean compute."""
    first = list(PARTS[:3])
    return parts.assign(**{WHOLE: parts[first].sum(axis=1)}, **dict.fromkeys(first, 0.0))


def step_parts(setting: Setting) -> pd.DataFrame:
    """Return a row per arm: its name, ``PARTS`` in seconds, their sum ``step_s``, and samples a step.

    Means over all steps of all runs but the first steps, as in all timing metrics; arms without compute times are left
    out. A part that was not measured is 0, and its time is in the rest; without a baseline in a launch no part of it is
    fixed.
    """
    rows = []
    base = {run.observation: _fixed_s(run) for run in setting.arms.get(baseline_of(setting) or "", [])}
    for arm, runs in setting.arms.items():
        tables = [each for run in runs if (each := run_parts(run, base.get(run.observation, 0.0))) is not None]
        if tables and arm != AA:
            rows.append({"arm": arm, **pd.concat(tables).mean().to_dict()})
    return pd.DataFrame(rows, columns=["arm", *PARTS, "step_s", "num_samples"])


def _fixed_s(run: Run) -> float:
    """Return the seconds of a micro-batch whatever its tokens; 0 where the line through a run's says less."""
    warm = run.records[run.records["step"] >= warmup_steps(run.records["step"].nunique())]
    if warm["compute_s"].isna().any() or (warm["num_microbatches"] != 1).any():
        return 0.0
    fixed, _ = line(warm["padded_tokens"].to_numpy(), warm["compute_s"].to_numpy())
    return max(0.0, fixed) if np.isfinite(fixed) else 0.0


def run_parts(run: Run, fixed_s: float = 0.0) -> pd.DataFrame | None:
    """Return a row per timed step of a run; None where compute or step times were not measured.

    ``fixed_s``: seconds of a micro-batch whatever its tokens.
    """
    records = run.records
    if records["compute_s"].isna().any() or records["step_s"].isna().any():
        return None
    given = {"exposed_s": _exposed_s(run)} | ({} if run.mode == "distributed" else {"plan_wait_s": 0.0})
    parts = parts_of(records.assign(**given), fixed_s)
    return parts.iloc[warmup_steps(len(parts)) :]


def _exposed_s(run: Run) -> "pd.Series[float]":
    """Return exposed communication by record; NaN where waits have no common clock, and on virtual ranks."""
    clocked = run.mode != "distributed" or not run.records[list(NEEDED)].isna().any(axis=None)
    if not clocked or run.records["wait_s"].isna().any():
        return pd.Series(float("nan"), index=run.records.index)
    table = waits(run.records, run.mode, {}, {}).set_index(["step", "rank"])["exposed_s"]
    return pd.Series(table.reindex(pd.MultiIndex.from_frame(run.records[["step", "rank"]])).to_numpy())


def parts_of(records: pd.DataFrame, fixed_s: float = 0.0) -> pd.DataFrame:
    """Return a row per step: ``PARTS``, ``step_s`` and ``num_samples``. ``records``: with ``exposed_s``."""
    compute = records["compute_s"]
    fixed = np.minimum(compute, fixed_s * records["num_microbatches"])
    real = (records["num_tokens"] / records["padded_tokens"]).fillna(0.0)  # a rank without samples does nothing useful
    by_step = records.assign(useful_s=(compute - fixed) * real, fixed_s=fixed).groupby("step")
    slowest = records.loc[by_step["compute_s"].idxmax()].set_index("step")
    mean, step_s = by_step["compute_s"].mean(), by_step["step_s"].max()
    parts = by_step[["useful_s", "fixed_s"]].mean()
    parts["padding_s"] = mean - parts["useful_s"] - parts["fixed_s"]
    parts["imbalance_s"] = slowest["compute_s"] - mean
    for name, column in (("exposed_s", "exposed_s"), ("planning_s", "plan_wait_s"), ("optimizer_s", "optimizer_s")):
        parts[name] = slowest[column].astype("float64").fillna(0.0)
    parts["rest_s"] = step_s - parts.sum(axis=1)
    return parts.assign(step_s=step_s, num_samples=by_step["num_samples"].sum())
