"""Step times while lengths change their law."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import rolling
from analysis.labels import label_ends, named
from analysis.style import GREY, SMALL, dash, logarithmic, page, shown_arms, tint
from ddpsched.visible_text import figure_label

Changes = Sequence[tuple[int, str]]  # the first step of each law, and its name


def lines_of_shift(found: pd.DataFrame, changes: Changes, ax: Axes) -> Axes:
    """Draw the rows ``arm``, ``step`` and ``step_s`` along the steps: a rolling median an arm, over faint points.

    ``changes``: laws are named at the top, and vertical rules part them. At most six arms are shown.
    """
    arms = shown_arms(list(dict.fromkeys(found["arm"])))
    for arm in arms:
        rows = found[found["arm"] == arm].sort_values("step")
        shade = tint(arm, arms)
        ax.plot(rows["step"], rows["step_s"], ".", color=shade, alpha=0.3, ms=2, mew=0, label="_steps")
        smooth = rows.groupby(np.searchsorted([step for step, _ in changes], rows["step"], side="right"))["step_s"]
        ax.plot(rows["step"], smooth.transform(rolling), color=shade, ls=dash(arm, arms), lw=1.4, label=named(arm))
    last = int(found["step"].max()) + 1
    ax.set_xlim(0, last - 1)
    # seconds of one law may be ten times those of another
    logarithmic(ax, found.loc[found["arm"].isin(arms), "step_s"].tolist())
    for turn, (step, name) in enumerate(changes):
        end = changes[turn + 1][0] if turn + 1 < len(changes) else last
        if turn:
            ax.axvline(step, color=GREY, lw=0.8, ls="--")
        ax.text(
            (step + end) / 2, 1.01, figure_label(name), transform=ax.get_xaxis_transform(), ha="center", va="bottom",
            fontsize=SMALL, color=GREY,
        )  # fmt: skip
    ax.set_xlabel("step (lines: rolling medians)")
    ax.set_ylabel("step (s), logarithmic")
    label_ends(ax)
    return ax


def draw_shift(found: pd.DataFrame, changes: Changes) -> Figure:
    """Return the figure of one panel; arguments as of ``lines_of_shift``."""
    figure, (ax,) = page(height_cm=6)
    lines_of_shift(found, changes, ax)
    return figure
