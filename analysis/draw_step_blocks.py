"""Padding and waiting of one step drawn to scale: a panel an arm, a row a rank, a rectangle a sample."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from analysis.step_blocks import yardstick
from analysis.style import GREY, SMALL, headed, page

ROW_CM, FRAME_CM, KEY_CM = 0.45, 1.2, 1.1
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "real": ("real tokens, a rectangle a sample", {"facecolor": "#0072B2", "edgecolor": "white", "lw": 0.5}),
    "padding": ("padding", {"facecolor": "#F3D9A6", "edgecolor": "#B07A00", "lw": 0.3, "hatch": "//////"}),
    "wait": ("waiting for the slowest rank", {"facecolor": "white", "edgecolor": GREY, "lw": 0.8, "ls": ":"}),
}


def rows_of_ranks(blocks: pd.DataFrame, ax: Axes) -> Axes:
    """Draw the blocks of ``step_blocks.step_blocks``: a row a rank, tokens to the right."""
    for row in blocks.to_dict("records"):
        _, look = KINDS[row["kind"]]
        ax.add_patch(Rectangle((row["begin"], row["rank"] - 0.4), row["tokens"], 0.8, **look))
    ranks = int(blocks["rank"].max()) + 1
    times, slowest, even = yardstick(blocks)
    ax.axvline(even, color="black", lw=1.0, zorder=3)
    ax.text(
        0.0, -0.06, f"yardstick {times:.2f} = slowest rank, {slowest:,} tokens / even share, {even:,.1f}",
        transform=ax.transAxes, va="top", fontsize=SMALL,
    )  # fmt: skip
    ax.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
    ax.set_ylim(ranks - 0.5, -0.5)
    ax.set_xlim(0, slowest * 1.01)
    ax.tick_params(length=0)
    ax.set_xticks([])
    ax.grid(False)
    ax.spines[["left", "bottom"]].set_visible(False)
    return ax


def draw_step_blocks(steps: Mapping[str, pd.DataFrame]) -> Figure:
    """Return a panel for each arm's step, by its heading, on one scale."""
    rows = [int(each["rank"].max()) + 1 for each in steps.values()]
    figure, axes = page(
        len(steps), 1, height_cm=KEY_CM + ROW_CM * sum(rows) + FRAME_CM * len(rows), sharex=True,
        gridspec_kw={"height_ratios": rows},
    )  # fmt: skip
    for ax, (heading, each) in zip(axes, steps.items(), strict=True):
        rows_of_ranks(each, headed(ax, heading))
    axes[0].set_xlim(0, 1.01 * max(yardstick(each)[1] for each in steps.values()))
    handles: list[Artist] = [Patch(label=label, **look) for label, look in KINDS.values()]
    handles.append(Line2D([], [], color="black", lw=1.0, label="even share of the real tokens"))
    figure.legend(
        handles=handles, loc="outside upper left", ncols=2, frameon=False, fontsize=SMALL, handlelength=1.6,
        columnspacing=1.2, borderaxespad=0.2,
    )  # fmt: skip
    return figure
