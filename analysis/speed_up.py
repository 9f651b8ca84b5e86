"""Speed-up over the number of ranks, as a table and a figure, from the rows of ``ddpsched.what_if``."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.style import LONGEST_TITLE, colour, dash
from ddpsched.visible_text import figure_label, visible

COLUMNS = ("world_size", "policy", "slow_share", "slowness", "step_s", "network_s", "waiting", "speed_up")


def speed_up_table(rows: Sequence[Mapping[str, Any]], column: str = "speed_up") -> pd.DataFrame:
    """Return a row for each policy and share of slow ranks, a column for each number of ranks.

    ``rows``: ``dataclasses.asdict`` of what ``ddpsched.what_if`` returned, of one call or several. ``column``: of
    them. Both are in the order in which they come; what was not computed is NaN.
    """
    table = pd.DataFrame([{name: row[name] for name in COLUMNS} for row in rows])
    table["slow"] = [speeds(row) for row in rows]
    keys = list(dict.fromkeys(zip(table["slow"], table["policy"], strict=True)))
    wide = table.pivot_table(index=["slow", "policy"], columns="world_size", values=column, sort=False)
    return wide.reindex(pd.MultiIndex.from_tuples(keys, names=["slow", "policy"]))[sorted(wide.columns)]


def speeds(row: Mapping[str, Any]) -> str:
    """Return which ranks of a row are slow, in words."""
    return f"some ranks {row['slowness']:g} times as slow" if row["slow_share"] > 0 else "ranks of equal speed"


def draw_speed_up(rows: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """Return the figure: static's step time over each policy's, over the ranks; a panel for ranks of equal speed, and
    one where some are slow.
    """
    table = speed_up_table(rows)
    slow = list(dict.fromkeys(table.index.get_level_values("slow")))
    figure = Figure(figsize=(7.6, 3.8), layout="constrained")
    figure.suptitle(textwrap.fill(visible(title, LONGEST_TITLE), 100), fontsize=10, x=0.01, ha="left", parse_math=False)
    panels = figure.subplots(1, len(slow), squeeze=False, sharey=True)[0]
    for ax, words in zip(panels, slow, strict=True):
        _panel(ax, table.loc[words])
        ax.set_title(figure_label(words), fontsize=9)
    panels[0].set_ylim(0, 1.05 * float(np.nanmax(table.to_numpy())))
    panels[0].set_ylabel("static's step time / this one's")
    handles = dict(pair for ax in panels for pair in zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def _panel(ax: Axes, table: pd.DataFrame) -> None:
    arms = [str(each).replace(", ", " ") for each in table.index]  # a colour belongs to the first word
    for arm, (policy, values) in zip(arms, table.iterrows(), strict=True):
        ax.plot(
            table.columns,
            values,
            color=colour(arm),
            ls=dash(arm, arms),
            marker="o",
            ms=3.5,
            label=figure_label(str(policy)),
        )
    ax.set_xscale("log", base=2)
    ax.set_xticks(table.columns, [f"{each:,}" for each in table.columns], fontsize=7, rotation=45)
    ax.minorticks_off()
    ax.set_xlabel("G, ranks")
    ax.grid(alpha=0.25, lw=0.5)
    ax.spines[["top", "right"]].set_visible(False)
