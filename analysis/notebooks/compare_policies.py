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
from analysis.settings import settings
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
setting = settings(study.runs)[0]
print(f"{setting.label}: {', '.join(setting.arms)}")

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

# %%
means = {row["arm"]: row["step_mean_s"] for row in table["arms"]}
fastest = min(means, key=means.__getitem__)
first = table["baseline"] or next(iter(means))
print(
    f"Answer: {fastest} is fastest, with {1e3 * means[fastest]:.4g} ms a step, {means[fastest] / means[first]:.2f} "
    f"times {first}'s ({setting.runs[0].mode} times)."
)
