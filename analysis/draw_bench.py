"""Figures of how times were compared: each arm's ratio above the noise floor, and step times over the wall clock."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.draw import save
from analysis.settings import AA, Setting
from analysis.style import GREY, LONGEST_TITLE, MILLISECONDS, colour, dash
from ddpsched.visible_text import figure_label, visible

STOLEN = "#CC3311"


def draw_ratios(rows: Sequence[dict[str, Any]], baseline: str, title: str) -> Figure:
    """Return each arm's step time over the baseline's with its interval, and the A/A pair's as a grey band.

    ``rows``: of ``tables.ratio_table``. An arm whose interval crosses the band is not told apart from noise.
    """
    shown = [row for row in rows if (row["baseline"], row["column"]) == (baseline, "step_s") and row["ratio"]]
    figure = Figure(figsize=(7.6, 1.5 + 0.36 * max(1, len(shown))), layout="constrained")
    ax = figure.subplots()
    figure.suptitle(textwrap.fill(visible(title, LONGEST_TITLE), 100), fontsize=10, x=0.01, ha="left", parse_math=False)
    ax.axvline(1.0, color="black", lw=0.8)
    floor = next((row for row in shown if row["arm"] == AA), None)
    if floor is not None and floor["low"] is not None:
        ax.axvspan(floor["low"], floor["high"], color="#DDDDDD", zorder=0, label="noise floor (A/A)")
    for place, row in enumerate(shown):
        shade = GREY if row["arm"] == AA else colour(row["arm"])
        if row["low"] is not None:
            ax.plot([row["low"], row["high"]], [place, place], color=shade, lw=2.5, solid_capstyle="butt")
        ax.plot([row["ratio"]], [place], "o", color=shade, ms=6)
        words = figure_label(textwrap.shorten(row["verdict"] or row["reason"] or "", 44))
        ax.annotate(
            f"{row['ratio']:.3f}  {words}", (1.01, place), xycoords=("axes fraction", "data"),
            va="center", fontsize=8, annotation_clip=False,
        )  # fmt: skip
    ax.set_yticks(range(len(shown)), [figure_label(row["arm"]) for row in shown])
    ax.set_ylim(len(shown) - 0.4, -0.6)
    ax.set_xlabel(f"step time / {figure_label(baseline)}'s, with 95 % intervals of launches")
    ax.margins(x=0.08)
    ax.grid(axis="x", alpha=0.25, lw=0.5)
    ax.spines[["top", "right"]].set_visible(False)
    if ax.get_legend_handles_labels()[0]:
        figure.legend(loc="outside lower right", frameon=False, fontsize=8)
    return figure


def draw_drift(setting: Setting, title: str) -> Figure | None:
    """Return step times over the wall clock, a panel a launch; in red the share of the processors stolen by the host.

    None where no run has the moments of its steps. Lines that rise and fall together show a machine that drifts.
    """
    launches = sorted({run.observation for run in setting.runs}, key=lambda each: (each[0], str(each[1])))
    every = [(arm, run) for arm, runs in setting.arms.items() for run in runs]
    steps = [(each[0], {arm: run.steps for arm, run in every if run.observation == each}) for each in launches]
    measured = [(seed, arms) for seed, arms in steps if any(t["unix_s"].notna().any() for t in arms.values())]
    if not measured:
        return None
    figure = Figure(figsize=(7.6, 1.2 + 2.0 * len(measured)), layout="constrained")
    figure.suptitle(textwrap.fill(visible(title, LONGEST_TITLE), 100), fontsize=10, x=0.01, ha="left", parse_math=False)
    panels = figure.subplots(len(measured), 1, squeeze=False)[:, 0]
    for ax, (seed, arms) in zip(panels, measured, strict=True):
        _drift(ax, seed, arms)
    panels[-1].set_xlabel("minutes since the launch's first step")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return figure


def _drift(ax: Axes, seed: int, arms: dict[str, pd.DataFrame]) -> None:
    begin = min(float(table["unix_s"].min()) for table in arms.values())
    for arm, table in arms.items():
        shade = GREY if arm == AA else colour(arm)
        minutes = (table["unix_s"] - begin) / 60
        style = dash(arm, list(arms))
        ax.plot(
            minutes,
            MILLISECONDS * table["step_s"],
            color=shade,
            ls=style,
            lw=1,
            marker=".",
            ms=3,
            label=figure_label(arm),
        )
    ax.set_ylim(bottom=0)
    ax.set_ylabel(f"seed {seed}\nstep time (ms)", fontsize=8)
    ax.grid(alpha=0.25, lw=0.5)
    ax.spines["top"].set_visible(False)
    every = pd.concat(arms.values())
    if every["steal_s"].notna().any():
        every = every.sort_values("unix_s")
        share = 100 * every["steal_s"].rolling(9, min_periods=1).sum() / every["step_s"].rolling(9, min_periods=1).sum()
        right = ax.twinx()
        right.plot((every["unix_s"] - begin) / 60, share, color=STOLEN, lw=0.8, ls="--")
        right.set_ylim(0, max(5.0, 1.1 * float(np.nanmax(share))))
        right.set_ylabel("stolen, % of one\nprocessor", fontsize=8, color=STOLEN)
        right.spines["top"].set_visible(False)


def draw_bench(setting: Setting, table: dict[str, Any], folder: Path) -> list[Path]:
    """Write both figures of a setting into ``folder``, as far as it has them; return their paths."""
    paths = []
    if table["baseline"] is not None and any(row["column"] == "step_s" for row in table["ratios"]):
        paths.append(folder / f"{setting.slug}-6-ratios.png")
        save(draw_ratios(table["ratios"], table["baseline"], setting.label), paths[-1])
    if (drift := draw_drift(setting, setting.label)) is not None:
        paths.append(folder / f"{setting.slug}-7-drift.png")
        save(drift, paths[-1])
    return paths
