"""Bars of throughput over static's, a panel a setting, above the noise floor of the A/A pair."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.settings import AA
from analysis.speeds import floor
from analysis.style import GREY, PALE, SMALL, headed, page, tint
from ddpsched.visible_text import figure_label

NOT_APART = "not told apart from A/A"
SHOWN = ("faster", "slower", "", NOT_APART)  # verdicts that a bar shows by itself
ROW_CM, FRAME_CM = 0.48, 1.6  # of a bar, and of a panel's heading and axis
CLOSE = 0.25  # to the band from below, so that a number reaches into it
ROOM = 1.34  # of the longest bar, for the words beside it


def bars_of_speed(found: pd.DataFrame, ax: Axes) -> Axes:
    """Draw the arms of ``speeds.speeds`` as horizontal bars with their numbers; the A/A interval is a grey band.

    An arm whose interval crosses the band is not told apart from noise.
    """
    found = found.astype(dict.fromkeys(("samples_per_s", "speed", "low", "high"), "float64"))  # frozen NaNs are None
    arms = found[found["arm"] != AA].reset_index(drop=True)
    names = list(arms["arm"])
    ax.axvline(1.0, color=GREY, lw=0.8)
    if (limits := floor(found)) is not None:
        ax.axvspan(*limits, color=PALE, lw=0, zorder=0.5)
    for place, row in enumerate(arms.to_dict("records")):
        measured = bool(np.isfinite(row["speed"]))
        shade = tint(row["arm"], names)
        fill = "white" if row["verdict"] == NOT_APART else shade
        ax.barh(place, row["speed"] if measured else 0.0, height=0.62, facecolor=fill, edgecolor=shade, lw=1.0)
        end = row["speed"] if measured else 0.0
        if np.isfinite([row["low"], row["high"]]).all() and row["low"] < row["high"]:
            ax.plot([row["low"], row["high"]], [place, place], color="black", lw=1.2, solid_capstyle="butt")
            end = row["high"]
        if limits is not None and limits[0] - CLOSE < end < limits[1]:
            end = max(limits[1], 1.0)  # a number beside the band and its line, not on them
        ax.annotate(_words(row), (end, place), (4, 0), textcoords="offset points", va="center", fontsize=SMALL)
    ax.set_yticks(range(len(arms)), [figure_label(name) for name in names])
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(arms) - 0.45, -0.55)
    ax.grid(False, axis="y")
    return ax


def _top(found: pd.DataFrame) -> float:
    return float(np.nanmax(found[["speed", "high"]].to_numpy(dtype="float64"), initial=1.0))


def _words(row: Mapping[Any, Any]) -> str:
    """Return the number beside a bar, and the reason where it is no result."""
    if not np.isfinite(row["speed"]):
        return "not measured"
    rate = row["samples_per_s"]
    rated = f"  ({rate:,.{0 if rate >= 20 else 1}f}/s)" if np.isfinite(rate) else ""
    note = "no interval" if row["verdict"].startswith("no interval") else row["verdict"]
    return f"{row['speed']:.2f} ×{rated}" + ("" if note in SHOWN else f", {figure_label(note)}")


def draw_speeds(found: Mapping[str, pd.DataFrame]) -> Figure:
    """Return a panel for each setting, by its heading, with the arms of ``speeds.speeds``."""
    rows = [int((each["arm"] != AA).sum()) for each in found.values()]
    figure, axes = page(
        len(found), 1, height_cm=ROW_CM * sum(rows) + FRAME_CM * len(rows), sharex=False,
        gridspec_kw={"height_ratios": rows},
    )  # fmt: skip
    for ax, (heading, each) in zip(axes, found.items(), strict=True):
        bars_of_speed(each, headed(ax, heading))
        ax.set_xlim(0, ROOM * max(map(_top, found.values())))  # a bar of a length means the same in all panels
    axes[-1].set_xlabel(
        "samples per second over static's; black: 95 % interval of launches\n"
        "grey band: static over itself (A/A); outlined: not told apart from it",
        size=SMALL,
    )
    return figure
