# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---
# ruff: noqa: E402

# %% [markdown]
# # Which policy is fastest?
#
# As a script, `python analysis/notebooks/compare_policies.py outputs/STUDY` answers for
# the first setting of that study; so does the environment variable `DDPSCHED_STUDY`.
# Without either, four policies run on simulated ranks, in `outputs/notebooks-policies`.

# %%
import os
import sys
from importlib import import_module
from pathlib import Path

HERE = Path(globals().get("__file__", Path.cwd() / "compare_policies.py")).resolve()
ROOT = next(folder for folder in HERE.parents if (folder / "analysis" / "load.py").exists())
sys.path.insert(0, str(ROOT))  # analysis is not installed: it lies beside ddpsched

import ddpsched
from analysis.draw import figures_folder, save
from analysis.figures import draw_time_ecdf
from analysis.load import load_study
from analysis.metrics import per_step
from analysis.settings import AA, settings
from analysis.tables import study_tables
from analysis.terminal import comparison, console, verdicts
from ddpsched.config import parse

# %% [markdown]
# ## The runs
#
# All policies share the order of samples, so step t has the same samples with static,
# balanced and packed; minmax takes others.

# %%
SMALL = {
    "study": "notebooks-policies", "steps": 60, "global_batch": 32, "world_size": 4, "data": {"size": 2000},
    "executor": {"kind": "simulated"},
}  # fmt: skip
NAMED = sys.argv[1] if len(sys.argv) == 2 else os.environ.get("DDPSCHED_STUDY")
if not NAMED:
    for kind in ("static", "minmax", "balanced", "packed"):
        folder = ddpsched.run(parse({**SMALL, "name": kind, "policy": {"kind": kind}}), overwrite=True)
study = load_study(Path(NAMED) if NAMED else folder.parent)
setting, *others = settings(study.runs)
print(f"{setting.label}: {', '.join(setting.arms)}")
for other in others:
    print(f"not shown: {other.label}, another setting of this study")
for run, reason in study.left_out.items():
    print(f"left out: {run}: {reason}")

# %% [markdown]
# ## Side by side
#
# Measured times have verdicts where the baseline ran twice (A/A); computed ones need none.

# %%
(table,) = study_tables([setting])
console().print(comparison(table))
if (rows := verdicts(table)).row_count:
    console().print(rows)

# %% [markdown]
# ## How long steps take

# %%
figure = figures_folder(study.path) / "policies.png"
steps = {arm: per_step(runs[0].records) for arm, runs in setting.arms.items()}
save(draw_time_ecdf(steps, setting.label), figure)
if "get_ipython" in globals():
    ipython = import_module("IPython.display")
    ipython.display(ipython.Image(figure))
print(figure)

# %% [markdown]
# ## The answer
#
# Time for the same work: of steps with the same samples, or per real token where a policy takes others.

# %%
first = table["baseline"]
ratios = [row for row in table["ratios"] if (row["baseline"], row["column"]) == (first, "step_s") and row["arm"] != AA]
computed = setting.runs[0].mode == "simulated"
faster = [row for row in ratios if row["ratio"] < 1 and (computed or row["verdict"] == "faster")]
if first is None:
    print("Answer: unknown, as neither static nor an A/A run is among these runs: run static in turn with them.")
elif faster:
    best = min(faster, key=lambda row: row["ratio"])
    words = f"with {best['ratio']:.2f} times {first}'s time for the same work ({setting.runs[0].mode} ranks)"
    print(f"Answer: {best['arm']} is fastest, {words}.")
else:
    print(f"Answer: none is told apart from {first}.")
