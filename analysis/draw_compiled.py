"""The figure of compiled models: the step time of each arm over static's eager one, a panel a policy, above A/A."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.compiled import AGAIN, STATIC
from analysis.style import GREY, LONGEST_TITLE, colour
from ddpsched.visible_text import figure_label, visible


def draw_compiled(policies: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """Return the figure of these policies, as :func:`analysis.compiled.with_ratios` returns them.

    A point is the ratio of mean steps, its bar the interval of launches, the grey band that of A/A. An arm that failed
    is a cross.
    """
    figure = Figure(figsize=(7.6, 3.6), layout="constrained")
    figure.suptitle(textwrap.fill(visible(title, LONGEST_TITLE), 100), fontsize=10, x=0.01, ha="left", parse_math=False)
    shown = [[row for row in each["rows"] if _is_shown(row, each["policy"])] for each in policies]
    panels = figure.subplots(
        1, len(policies), squeeze=False, sharey=True, gridspec_kw={"width_ratios": list(map(len, shown))}
    )[0]
    for ax, each, arms in zip(panels, policies, shown, strict=True):
        _panel(ax, each, arms)
    low, high = panels[0].get_ylim()
    room = 0.08 * (high - low)  # for the numbers above and below the points
    panels[0].set_ylim(low - room, high + room)
    panels[0].set_ylabel("step time / static eager's")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower right", frameon=False, fontsize=8)
    return figure


def _is_shown(row: Mapping[str, Any], policy: str) -> bool:
    """Return whether a row is one of the policy's own arms; the baseline is the line at 1, and A/A the band."""
    return row["policy"] == policy and row["kind"] != AGAIN


def _panel(ax: Axes, policy: Mapping[str, Any], arms: Sequence[Mapping[str, Any]]) -> None:
    ax.axhline(1.0, color="black", lw=0.8)
    again = next((row["to_static"] for row in policy["rows"] if row["kind"] == AGAIN), None)
    if again is not None and again["low"] is not None:
        ax.axhspan(again["low"], again["high"], color="#DDDDDD", zorder=0, label="noise (A/A)")
    shade = colour(policy["policy"])
    for place, row in enumerate(arms):
        ratio = row["to_static"]
        if ratio is None:
            ax.plot([place], [1.0], "x", color=GREY, ms=7)
            ax.annotate("failed", (place, 1.0), (0, 7), textcoords="offset points", ha="center", fontsize=7, color=GREY)
            continue
        low, high = (ratio["ratio"] if ratio[name] is None else ratio[name] for name in ("low", "high"))
        ax.plot([place, place], [low, high], color=shade, lw=2.5, solid_capstyle="butt")
        ax.plot([place], [ratio["ratio"]], "o", color=shade, ms=5)
        faster = ratio["ratio"] < 1  # named below, so that the line at 1 does not strike the number
        end = low if faster else high
        ax.annotate(
            f"{ratio['ratio']:.2f}", (place, end), (0, -5 if faster else 5), textcoords="offset points", ha="center",
            va="top" if faster else "bottom", fontsize=8, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )  # fmt: skip
    names = [f"N = {row['shapes']}" if row["kind"] == STATIC else row["kind"] for row in arms]
    ax.set_xticks(range(len(arms)), names, rotation=90, fontsize=8)
    ax.set_xlim(-0.6, len(arms) - 0.4)
    ax.set_title(figure_label(policy["policy"]), fontsize=9)
    ax.grid(axis="y", alpha=0.25, lw=0.5)
    ax.spines[["top", "right"]].set_visible(False)
