"""Steps while lengths change their law, and bars of ranks of unequal speed."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import rolling
from analysis.labels import label_ends, named
from analysis.style import GREY, SMALL, dash, headed, logarithmic, page, shown_arms, tint
from ddpsched.visible_text import figure_label

Changes = Sequence[tuple[int, str]]  # the first step of each law, and its name
LOAD = "largest rank's padded tokens / even share"


def lines_of_shift(found: pd.DataFrame, changes: Changes, ax: Axes, column: str = "load", label: str = LOAD) -> Axes:
    """Draw ``column`` of the rows ``arm`` and ``step`` along the steps: a rolling median an arm, over faint points.

    ``changes``: laws are named at the top, and vertical rules part them. At most six arms are shown.
    """
    arms = shown_arms(list(dict.fromkeys(found["arm"])))
    for arm in arms:
        rows = found[found["arm"] == arm].sort_values("step")
        shade = tint(arm, arms)
        ax.plot(rows["step"], rows[column], ".", color=shade, alpha=0.3, ms=2, mew=0, label="_steps")
        smooth = rows.groupby(np.searchsorted([step for step, _ in changes], rows["step"], side="right"))[column]
        ax.plot(rows["step"], smooth.transform(rolling), color=shade, ls=dash(arm, arms), lw=1.4, label=named(arm))
    last = int(found["step"].max()) + 1
    ax.set_xlim(0, last - 1)
    shown = found.loc[found["arm"].isin(arms), column]
    if column == "load":
        ax.set_ylim(min(1.0, float(shown.min())), 1.05 * float(shown.quantile(0.995)))
    else:  # seconds of one law may be ten times those of another
        logarithmic(ax, shown.tolist())
    for turn, (step, name) in enumerate(changes):
        end = changes[turn + 1][0] if turn + 1 < len(changes) else last
        if turn:
            ax.axvline(step, color=GREY, lw=0.8, ls="--")
        ax.text(
            (step + end) / 2, 1.01, figure_label(name), transform=ax.get_xaxis_transform(), ha="center", va="bottom",
            fontsize=SMALL, color=GREY,
        )  # fmt: skip
    ax.set_xlabel("step (lines: rolling medians)")
    ax.set_ylabel(label)
    label_ends(ax)
    return ax


def draw_shift(
    found: pd.DataFrame, changes: Changes, title: str = "", column: str = "load", label: str = LOAD
) -> Figure:
    """Return the figure of one panel; arguments as of ``lines_of_shift``."""
    figure, (ax,) = page(height_cm=7.5, title=title)
    lines_of_shift(found, changes, ax, column, label)
    return figure


def bars_of_unequal(found: pd.DataFrame, ax: Axes, column: str = "step") -> Axes:
    """Draw the rows ``arm``, ``learning`` and ``column`` as bars: outlined without learning speeds, full with it."""
    arms = list(dict.fromkeys(found["arm"]))
    places, names = [], []
    for turn, arm in enumerate(arms):
        rows = found[found["arm"] == arm].sort_values("learning")
        for offset, row in zip(_around(len(rows)), rows.to_dict("records"), strict=True):
            place, shade = turn + offset, tint(arm, [arm])
            ax.barh(
                place, row[column], height=0.36, facecolor=shade if row["learning"] else "white", edgecolor=shade, lw=1
            )
            words = f"{row[column]:.2f}  {'learning' if row['learning'] else 'as if equal'}"
            ax.annotate(words, (row[column], place), (4, 0), textcoords="offset points", va="center", fontsize=SMALL)
        places.append(turn)
        names.append(figure_label(arm))
    ax.set_yticks(places, names)
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(arms) - 0.5, -0.5)
    ax.set_xlim(0, 1.25 * float(found[column].max()))
    ax.axvline(1.0, color=GREY, lw=0.8)
    ax.grid(False, axis="y")
    ax.set_xlabel("step time / the time of the real tokens shared by speed")
    return ax


def _around(number: int) -> list[float]:
    return [0.0] if number == 1 else [-0.2, 0.2]


def draw_unequal(found: pd.DataFrame, slowness: Sequence[float], title: str = "") -> Figure:
    """Return the figure of one panel, whose heading gives ``slowness``."""
    figure, (ax,) = page(height_cm=2.4 + 0.95 * found["arm"].nunique(), title=title)
    bars_of_unequal(found, headed(ax, f"ranks that take {', '.join(f'{each:g}' for each in slowness)} times as long"))
    return figure
