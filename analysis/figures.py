"""The five figures: a table and an ``ax`` in, the ``ax`` out.

``steps`` maps an arm's label to its ``metrics.per_step`` table. Single steps are
drawn as a faint line and their rolling median as a bold one, because 300 noisy
steps would cover each other. A panel names the arms whose column was not measured.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddpsched.visible_text import figure_label, visible

Steps = Mapping[str, pd.DataFrame]

# Okabe and Ito's palette, legible to colour-blind readers. matplotlib names it only from 3.11 on.
COLOURS = {
    "static": "#000000",
    "minmax": "#D55E00",
    "balanced": "#0072B2",
    "packed": "#009E73",
    "token_budget": "#CC79A7",
    "bins": "#56B4E9",
    "pool": "#E69F00",
}
SHADES = {"static (max_length)": "#999999"}  # one arm more than a colour has dashes for
CURRICULA = {  # longer names first
    "curriculum_local": {"static": "#D55E00"},
    "curriculum": {"static": "#0072B2", "token_budget": "#009E73"},
}
OTHER = "#CC79A7"
LONGEST_TITLE = 600  # characters
GREY = "#555555"
DASHES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))  # arms of one policy share its colour


# From a column's unit to the one on the axis.
MILLISECONDS = 1e3  # of seconds
MEBIBYTES = 2.0**-20  # of bytes


def colour(arm: str) -> str:
    """Return the colour of the arm's policy, the same in all figures; arms of a curriculum have other colours."""
    sorts = next((kind for kind in CURRICULA if kind in arm), None)
    shade = SHADES.get(arm) if sorts is None else CURRICULA[sorts].get(arm.split(" ")[0])
    return shade or COLOURS.get(arm.split(" ")[0], OTHER)


def dash(arm: str, arms: Sequence[str]) -> Any:
    """Return the arm's dashes: solid for the first arm of a colour, then the others."""
    return DASHES[[a for a in arms if colour(a) == colour(arm)].index(arm) % len(DASHES)]


def window(num_steps: int) -> int:
    """Return the steps of the rolling median: about a twentieth of the run, odd, at least 5."""
    return max(5, num_steps // 20 // 2 * 2 + 1)


def per_step_lines(steps: Steps, column: str, scale: float, ax: Axes, thin: str | None = None) -> Axes:
    """Draw one column over the steps for each arm, times ``scale``; ``thin``: a second column, as a thin line."""
    arms = list(steps)
    for arm in arms:
        table = steps[arm]
        values = table[column] * scale
        if values.notna().any():
            smooth = values.rolling(window(len(values)), center=True, min_periods=1).median()
            ax.plot(table.index, values, color=colour(arm), alpha=0.25, lw=0.7)
            ax.plot(table.index, smooth, color=colour(arm), ls=dash(arm, arms), lw=2, label=figure_label(arm))
        if thin is not None and table[thin].notna().any():
            ax.plot(table.index, table[thin] * scale, color=colour(arm), lw=0.6, ls=":")
    ax.set_xlabel(f"step (bold: rolling median of {window(max(map(len, steps.values())))} steps)")
    ax.margins(x=0.01)
    _keep_in_view([steps[arm][column].dropna().to_numpy() * scale for arm in arms], ax)
    return _finish(steps, column, ax)


def _keep_in_view(columns: Sequence[npt.NDArray[np.float64]], ax: Axes) -> None:
    """End the axis below rare outliers (a first step, say) that would flatten the rest, and write their number."""
    values = np.concatenate(columns)
    if not len(values):
        return
    top = 1.6 * float(np.percentile(values, 99))
    beyond = values[values > top]
    if len(beyond) and top > 0:
        ax.set_ylim(top=top)
        text = f"above the axis: {len(beyond)} {'step' if len(beyond) == 1 else 'steps'}, up to {beyond.max():.4g}"
        ax.text(0.99, 0.97, text, transform=ax.transAxes, ha="right", va="top", fontsize=8, color=GREY)


def ecdf(steps: Steps, column: str, scale: float, ax: Axes) -> Axes:
    """Draw the share of steps at or below each value, one stair for each arm; values times ``scale``."""
    arms = list(steps)
    for arm in arms:
        values = np.sort((steps[arm][column] * scale).dropna().to_numpy())
        if len(values):
            ax.ecdf(values, color=colour(arm), ls=dash(arm, arms), lw=1.8, label=figure_label(arm))
    ax.set_ylim(0, 1.01)
    return _finish(steps, column, ax)


def _finish(steps: Steps, column: str, ax: Axes) -> Axes:
    """Draw the grid, and name the arms without values."""
    ax.grid(alpha=0.25, lw=0.5)
    ax.spines[["top", "right"]].set_visible(False)
    absent = [arm for arm in steps if not steps[arm][column].notna().any()]
    if len(absent) == len(steps):
        ax.text(0.5, 0.5, "not measured in these runs", transform=ax.transAxes, ha="center", color=GREY)
        ax.tick_params(left=False, labelleft=False, bottom=False, labelbottom=False)
    elif absent:
        ax.text(0.01, 0.94, figure_label(f"not measured: {', '.join(absent)}"), transform=ax.transAxes, color=GREY)
    return ax


def draw_step_time(steps: Steps, title: str) -> Figure:
    """Return figure 1: the longest compute time over ranks, and the whole step."""
    figure, (upper, lower) = _page(title, rows=2, height=5.2)
    per_step_lines(steps, "max_compute_s", MILLISECONDS, upper).set_ylabel("max compute time (ms)")
    per_step_lines(steps, "step_s", MILLISECONDS, lower).set_ylabel("step time (ms)")
    upper.set_xlabel("")
    return _legend(figure, upper)


def draw_time_spread(steps: Steps, title: str) -> Figure:
    """Return figure 2: the spread of compute times over ranks; that of step times (dotted) is 0 but for clocks."""
    figure, (ax,) = _page(title)
    per_step_lines(steps, "std_compute_s", MILLISECONDS, ax, thin="std_step_s")
    ax.set_ylabel("std over ranks,\ncompute time (ms)")
    ax.plot([], [], color=GREY, lw=0.6, ls=":", label="step time")
    return _legend(figure, ax)


def draw_token_spread(steps: Steps, title: str) -> Figure:
    """Return figure 3: the spread of padded tokens over ranks."""
    figure, (ax,) = _page(title)
    per_step_lines(steps, "std_padded_tokens", 1.0, ax).set_ylabel("std over ranks (padded tokens)")
    return _legend(figure, ax)


def draw_memory_spread(steps: Steps, title: str) -> Figure:
    """Return figure 4: the spread of peak memory over ranks."""
    figure, (ax,) = _page(title)
    per_step_lines(steps, "std_peak_memory_bytes", MEBIBYTES, ax).set_ylabel("std over ranks,\npeak memory (MiB)")
    return _legend(figure, ax)


def draw_time_ecdf(steps: Steps, title: str) -> Figure:
    """Return figure 5: the distribution of both times over the steps."""
    figure, (left, right) = _page(title, columns=2)
    ecdf(steps, "max_compute_s", MILLISECONDS, left).set_xlabel("max compute time (ms)")
    ecdf(steps, "step_s", MILLISECONDS, right).set_xlabel("step time (ms)")
    left.set_ylabel("share of steps")
    return _legend(figure, left)


FIGURES = {
    "1-step-time": draw_step_time,
    "2-time-spread": draw_time_spread,
    "3-token-spread": draw_token_spread,
    "4-memory-spread": draw_memory_spread,
    "5-time-ecdf": draw_time_ecdf,
}


def _page(title: str, rows: int = 1, columns: int = 1, height: float = 3.4) -> tuple[Figure, Sequence[Axes]]:
    # Figure() and not pyplot: no global state, and no window system on a server
    figure = Figure(figsize=(7.6, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharex=rows > 1, sharey=columns > 1)
    figure.suptitle(
        visible(title, LONGEST_TITLE, lines=True), fontsize=10, x=0.01, ha="left", parse_math=False
    )  # a device may have a $ in its name
    return figure, list(axes.flat)


def _legend(figure: Figure, ax: Axes) -> Figure:
    handles, labels = ax.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure
