"""Lines of the yardstick over the number of ranks, an arm a line, with points of real runs on them."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.labels import label_ends, named
from analysis.style import GREY, SMALL, colour, dash, in_doublings, logarithmic, page, shown_arms, tint

SIZES = {"yardstick": "slowest rank's padded tokens / even share", "step_s": "seconds a step"}


def lines_of_ranks(
    found: pd.DataFrame, ax: Axes, measured: pd.DataFrame | None = None, column: str = "yardstick"
) -> Axes:
    """Draw the rows ``arm``, ``world_size`` and ``column`` as a line an arm; both axes are logarithmic.

    ``measured``: rows of the same columns from runs, drawn as rings. At most six arms are shown.
    """
    arms = shown_arms(list(dict.fromkeys(found["arm"])))
    for arm in arms:
        rows = found[found["arm"] == arm].sort_values("world_size")
        ax.plot(
            rows["world_size"], rows[column], color=tint(arm, arms), ls=dash(arm, arms), lw=1.5, marker=".", ms=4,
            label=named(arm),
        )  # fmt: skip
    shown = [found[found["arm"].isin(arms)]]
    if measured is not None and not (runs := measured[measured["arm"].isin(arms)]).empty:
        shown.append(runs)
        for row in runs.to_dict("records"):
            ax.plot(
                [row["world_size"]], [row[column]], "o", mfc="white", mec=colour(row["arm"]), ms=6, mew=1.2, zorder=4,
                label="_run",
            )  # fmt: skip
        ax.text(0.02, 0.97, "rings: measured runs", transform=ax.transAxes, va="top", fontsize=SMALL, color=GREY)
    every = pd.concat(shown)
    in_doublings(ax, every["world_size"].tolist())
    ax.tick_params(axis="x", labelsize=SMALL)
    logarithmic(ax, every[column].tolist())
    ax.set_xlabel("ranks, 8 samples each in a step" if column == "yardstick" else "ranks")
    ax.set_ylabel(SIZES.get(column, column))
    label_ends(ax)
    return ax


def draw_scaling(found: pd.DataFrame, measured: pd.DataFrame | None = None, title: str = "") -> Figure:
    """Return the figure of one panel; arguments as of ``lines_of_ranks``."""
    figure, (ax,) = page(height_cm=8.5, title=title)
    lines_of_ranks(found, ax, measured)
    return figure
