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
# # What happened in my run?
#
# As a script, `python analysis/notebooks/first_look.py outputs/STUDY/RUN` answers for
# that run; so does the environment variable `DDPSCHED_RUN`. Without either, it makes a
# small run of its own, of simulated ranks, in `outputs/notebooks` below this folder.

# %%
import os
import sys
from importlib import import_module
from pathlib import Path

HERE = Path(globals().get("__file__", Path.cwd() / "first_look.py")).resolve()
ROOT = next(folder for folder in HERE.parents if (folder / "analysis" / "load.py").exists())
sys.path.insert(0, str(ROOT))  # analysis is not installed: it lies beside ddpsched

import ddpsched
from analysis.draw import figures_folder, save
from analysis.figures import draw_step_time
from analysis.load import load_run
from analysis.metrics import per_step, summarise
from ddpsched.config import parse

# %% [markdown]
# ## The run

# %%
NAMED = sys.argv[1] if len(sys.argv) == 2 else os.environ.get("DDPSCHED_RUN")
SMALL = {
    "study": "notebooks", "name": "first-look", "steps": 60, "global_batch": 32, "world_size": 4,
    "policy": {"kind": "static"}, "executor": {"kind": "simulated"}, "data": {"size": 2000},
}  # fmt: skip
run = load_run(Path(NAMED) if NAMED else ddpsched.run(parse(SMALL), overwrite=True))
size = f"G = {run.config['world_size']}, B = {run.config['global_batch']}"
print(f"{run.name}: {run.policy}, {size}, {run.mode}, {run.device}")

# %% [markdown]
# ## Its numbers
#
# A record is one rank in one step. A step lasts as long as its slowest rank: the others
# wait. Rows are padded to the longest sample of their micro-batch: that is computed, too.

# %%
numbers = summarise(run.records, run.evaluations)
print(run.records[["step", "rank", "num_samples", "num_tokens", "padded_tokens", "compute_s", "wait_s"]].head(8))

# %% [markdown]
# ## Its steps

# %%
figure = figures_folder(run.path) / "first-look.png"
save(draw_step_time({run.policy: per_step(run.records)}, f"{run.name}: {size}, {run.mode}"), figure)
if "get_ipython" in globals():
    ipython = import_module("IPython.display")
    ipython.display(ipython.Image(figure))
print(figure)

# %% [markdown]
# ## The answer

# %%
print(
    f"Answer: a step takes {1e3 * numbers['step_mean_s']:.4g} ms, of which a rank waits "
    f"{numbers['wait_share']:.0%}. {1 - numbers['padding_efficiency']:.0%} of the computed tokens are padding, and the "
    f"largest rank computes {numbers['yardstick']:.2f} times an even share of the real tokens: "
    f"a perfect division would be 1."
)
