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
# # One run beside its static partner
#
# As a script, `python analysis/notebooks/run.py outputs/STUDY/RUN` prints the
# numbers and writes the five figures into the run's folder. In Jupyter (through
# jupytext, or `jupytext --to ipynb run.py`), set `RUN` below and run all cells.

# %%
import sys
from importlib import import_module
from pathlib import Path

HERE = Path(globals().get("__file__", Path.cwd() / "run.py")).resolve()
ROOT = next(folder for folder in HERE.parents if (folder / "analysis" / "load.py").exists())
sys.path.insert(0, str(ROOT))  # analysis is not installed: it lies beside ddpsched

import pandas as pd

from analysis.draw import draw_run
from analysis.load import load_run, load_study
from analysis.metrics import summarise
from analysis.settings import partner

# %% [markdown]
# ## Which run

# %%
RUN = Path(sys.argv[1]) if len(sys.argv) == 2 else ROOT / "outputs/demo/minmax-seed0"
run = load_run(RUN)
static = partner(run, load_study(RUN.parent).runs)
print(f"{run.name}: {run.policy}, {run.mode}, {run.device}; partner: {static.name if static else 'none'}")

# %% [markdown]
# ## Numbers
#
# Times are seconds; what was not measured is NaN.

# %%
columns = {r.name: summarise(r.records, r.evaluations) for r in (static, run) if r is not None}
print(pd.DataFrame(columns).to_string(float_format="{:.4g}".format))

# %% [markdown]
# ## Figures

# %%
paths = draw_run(run, static)
if "get_ipython" in globals():
    ipython = import_module("IPython.display")
    for path in paths:
        ipython.display(ipython.Image(path))
else:
    print("\n".join(map(str, paths)))
