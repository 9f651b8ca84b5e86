"""Lines of the yardstick over the number of ranks, an arm a line."""

import pandas as pd
from matplotlib.figure import Figure

from analysis.labels import label_ends, named
from analysis.style import SMALL, dash, in_doublings, logarithmic, page, shown_arms, tint


def draw_scaling(found: pd.DataFrame, title: str = "") -> Figure:
    """Draw the rows ``arm``, ``world_size`` and ``yardstick`` as a line an arm, of at most six; both axes are logs."""
    figure, (ax,) = page(height_cm=8.5, title=title)
    arms = shown_arms(list(dict.fromkeys(found["arm"])))
    for arm in arms:
        rows = found[found["arm"] == arm].sort_values("world_size")
        style = {"color": tint(arm, arms), "ls": dash(arm, arms), "lw": 1.5, "marker": ".", "ms": 4}
        ax.plot(rows["world_size"], rows["yardstick"], label=named(arm), **style)
    shown = found[found["arm"].isin(arms)]
    in_doublings(ax, shown["world_size"].tolist())
    ax.tick_params(axis="x", labelsize=SMALL)
    logarithmic(ax, shown["yardstick"].tolist())
    ax.set_xlabel("ranks, 8 samples each in a step")
    ax.set_ylabel("slowest rank's padded tokens / even share")
    label_ends(ax)
    return figure
