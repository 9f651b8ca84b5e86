"""Speed-up over the number of ranks, as a table and a figure, from the rows of ``ddpsched.what_if``."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.labels import label_ends, named
from analysis.style import GREY, SMALL, colour, dash, headed, in_doublings, page

BESIDE = 2**0.3  # what the places of two rings at one number of ranks differ by, on the log axis
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


def draw_speed_up(
    rows: Sequence[Mapping[str, Any]], title: str = "", measured: Sequence[Mapping[str, Any]] = ()
) -> Figure:
    """Return the figure: static's step time over each policy's, over the ranks; a panel for ranks of equal speed, and
    one where some are slow.

    ``measured``: rows with ``policy``, ``world_size``, ``speed_up``, ``low`` and ``high``, rings with intervals in the
    first panel; policies without a line are left out.
    """
    table = speed_up_table(rows)
    slow = list(dict.fromkeys(table.index.get_level_values("slow")))
    figure, panels = page(1, len(slow), height_cm=6.5, title=title, sharey=True)
    for ax, words in zip(panels, slow, strict=True):
        _panel(headed(ax, words), table.loc[words])
    rings = [row for row in measured if row["policy"] in table.loc[slow[0]].index and row["policy"] != "static"]
    policies = list(dict.fromkeys(row["policy"] for row in rings))
    for row in rings:
        aside = BESIDE ** (policies.index(row["policy"]) - (len(policies) - 1) / 2)  # so that no ring hides another
        place, shade = row["world_size"] * aside, colour(row["policy"])
        panels[0].plot(place, row["speed_up"], "o", mfc="white", mec=shade, ms=3.6, mew=1.1, zorder=4, clip_on=False)
        panels[0].vlines(place, row["low"], row["high"], color=shade, lw=1.2, zorder=5, clip_on=False)
    if rings:
        least = min(row["world_size"] for row in rings)
        panels[0].set_xlim(left=min(panels[0].get_xlim()[0], least / BESIDE ** len(policies)))
        panels[0].text(
            0.03, 0.97, "rings: measured", transform=panels[0].transAxes, va="top", fontsize=SMALL, color=GREY
        )
    panels[0].set_ylim(0, 1.05 * max(float(np.nanmax(table.to_numpy())), *(row["speed_up"] for row in rings), 1.0))
    panels[0].set_ylabel("static's step time / this one's")
    return figure


def _panel(ax: Axes, table: pd.DataFrame) -> None:
    arms = [str(each).replace(", ", " ") for each in table.index]  # a colour belongs to the first word
    for arm, (policy, values) in zip(arms, table.iterrows(), strict=True):
        ax.plot(
            table.columns, values, color=colour(arm), ls=dash(arm, arms), lw=1.4, marker="o", ms=3, clip_on=False,
            label=named(str(policy)),
        )  # fmt: skip
    in_doublings(ax, [float(size) for size in table.columns])
    ax.tick_params(axis="x", labelsize=SMALL, rotation=45)
    ax.set_xlabel("ranks")
    label_ends(ax)
