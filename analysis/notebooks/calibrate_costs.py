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
# # What does a micro-batch of my model cost?
#
# As a script, `python analysis/notebooks/calibrate_costs.py device.json` answers for that
# file of `ddpsched calibrate`; so does the environment variable `DDPSCHED_CALIBRATION`.
# Without either, the tiny model is measured here for a second or two.

# %%
import os
import sys
from importlib import import_module
from pathlib import Path

HERE = Path(globals().get("__file__", Path.cwd() / "calibrate_costs.py")).resolve()
ROOT = next(folder for folder in HERE.parents if (folder / "analysis" / "load.py").exists())
sys.path.insert(0, str(ROOT))  # analysis is not installed: it lies beside ddpsched

import numpy as np
from matplotlib.figure import Figure

from analysis.draw import save
from ddpsched.config import parse
from ddpsched.costs.calibration import Calibration

# %% [markdown]
# ## Measured
#
# Forward and backward of so many samples of one length, a few times each. The least time
# counts, as disturbances only ever add. A third of the points is left out of the fit.

# %%
NAMED = sys.argv[1] if len(sys.argv) == 2 else os.environ.get("DDPSCHED_CALIBRATION")
file = Path(NAMED or "outputs/notebooks/tiny.json")
if not NAMED:
    from ddpsched.training.calibrate import calibrate_to

    file.parent.mkdir(parents=True, exist_ok=True)
    config = parse({"steps": 1, "data": {"size": 64, "max_length": 64}, "executor": {"device": "cpu"}})
    calibrate_to(file, config, overwrite=True, passes=3, max_tokens=128)
calibration = Calibration.load(file)
count, length, least, held_out = np.array(
    [(p.count, p.length, min(p.seconds), p.held_out) for p in calibration.points]
).T
print(f"{calibration.identity}: {len(calibration.points)} points")

# %% [markdown]
# ## The fit

# %%
cost, errors = calibration.seconds, calibration.seconds_residuals
predicted = calibration.time.seconds(count, length)
figure = Figure(figsize=(6.0, 3.4), layout="constrained")
ax = figure.subplots()
for held, words, mark in ((0, "in the fit", "o"), (1, "held out", "s")):
    mine = held_out == held
    ax.plot((count * length)[mine], 1e3 * least[mine], mark, ms=5, label=f"measured, {words}")
ax.plot(count * length, 1e3 * predicted, "x", color="black", ms=5, label="by the fit")
ax.set(xlabel="padded tokens, count x length", ylabel="ms", xscale="log", yscale="log")
ax.grid(alpha=0.25, lw=0.5)
ax.legend(frameon=False, fontsize=8)
path = file.with_name("calibration.png")
save(figure, path)
if "get_ipython" in globals():
    ipython = import_module("IPython.display")
    ipython.display(ipython.Image(path))
print(path)

# %% [markdown]
# ## The answer

# %%
share = f", as much as {cost.alpha / cost.beta:.0f} padded tokens" if cost.beta else ""
print(
    f"Answer: a micro-batch costs {1e3 * cost.alpha:.3g} ms{share}, and {1e6 * cost.beta:.3g} us for each padded "
    f"token; the fit is {errors.held_out_mean:.1%} off on points that it has not seen. To plan with it: "
    f"cost.kind=calibrated cost.path={file}"
)
