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
# # What would I gain at 64 GPUs?
#
# As a script, `python analysis/notebooks/more_ranks.py device.json [network.json]` answers
# for that model and device, and network, of `ddpsched calibrate`; so do the environment
# variables `DDPSCHED_CALIBRATION` and `DDPSCHED_NETWORK`. Without them, for DistilBERT on
# one processor core a rank, with messages that take no time. All of it is computed:
# report/notes/simulator.md says how far that can be trusted.

# %%
import os
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

HERE = Path(globals().get("__file__", Path.cwd() / "more_ranks.py")).resolve()
ROOT = next(folder for folder in HERE.parents if (folder / "analysis" / "load.py").exists())
sys.path.insert(0, str(ROOT))  # analysis is not installed: it lies beside ddpsched

import numpy as np

import ddpsched
from analysis.draw import save
from analysis.speed_up import draw_speed_up, speed_up_table
from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.planning.what_if import DISTILBERT

# %% [markdown]
# ## Lengths, times, ranks
#
# Lengths are drawn as those of SST-2's sentences; put your own there, which
# `ddpsched.lengths(...)` reads. In the second half one rank in eight takes 1.5 times as long.

# %%
GPUS = 64
given = [*sys.argv[1:3], None, None] if len(sys.argv) in (2, 3) else []
calibration = given[0] if given else os.environ.get("DDPSCHED_CALIBRATION")
network = given[1] if given else os.environ.get("DDPSCHED_NETWORK")
cost = {"kind": "calibrated", "path": calibration} if calibration else DISTILBERT
lengths = sst2_lengths(8192, np.random.default_rng(0))
sizes = [4, 16, GPUS]
rows = [
    asdict(each)
    for share in (0.0, 0.125)
    for each in ddpsched.what_if(
        lengths, world_sizes=sizes, cost=cost, network=network, slow_share=share, slowness=1.5, steps=16
    )
]

# %% [markdown]
# ## Step times, and what each policy makes of them

# %%
print((1e3 * speed_up_table(rows, "step_s")).round(1).to_string())
print(speed_up_table(rows).round(2).to_string())
path = Path("outputs/notebooks/more-ranks.png")
save(draw_speed_up(rows, f"Computed: {calibration or 'DistilBERT, a core a rank'}, SST-2's lengths"), path)
if "get_ipython" in globals():
    ipython = import_module("IPython.display")
    ipython.display(ipython.Image(path))
print(path.resolve())

# %% [markdown]
# ## The answer

# %%
at = [row for row in rows if row["world_size"] == GPUS]
even, slow = ([row for row in at if (row["slow_share"] > 0) == kind] for kind in (False, True))
best, best_slow = (max(each, key=lambda row: row["speed_up"]) for each in (even, slow))
static = next(row for row in even if row["policy"] == "static")
print(
    f"Answer: on {GPUS} ranks of equal speed a rank of static waits {static['waiting']:.0%} of each step; "
    f"{best['policy']} makes steps {best['speed_up']:.2f} times as fast. With slow ranks {best_slow['policy']} does, "
    f"by {best_slow['speed_up']:.2f}. Now measure it: ddpsched advise CONFIG"
)
