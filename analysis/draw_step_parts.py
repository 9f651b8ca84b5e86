"""Stacked bars of where a step's time goes, a bar an arm."""

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis.style import MILLISECONDS, SMALL, headed, page
from ddpsched.visible_text import figure_label

# from useful, the darkest, to waiting; padding is hatched wherever it is drawn
LOOKS = {
    "compute_s": ("mean compute", "#4C9AC9", ""),
    "useful_s": ("useful compute", "#0072B2", ""),
    "fixed_s": ("fixed cost of a micro-batch", "#56B4E9", ""),
    "padding_s": ("padding", "#F3D9A6", "////"),
    "imbalance_s": ("imbalance", "#D55E00", ""),
    "exposed_s": ("exposed communication", "#CC79A7", ""),
    "planning_s": ("planning", "#000000", ""),
    "optimizer_s": ("optimizer", "#8A8A8A", ""),
    "rest_s": ("rest", "#D8D8D8", ""),
}
ROW_CM, FRAME_CM, KEY_CM = 0.68, 1.7, 1.0
LEAST = 0.055  # of the axis, for a part's number inside it
Unit = tuple[float, str]  # of a second, and its name
IN_MS, IN_PERCENT = (MILLISECONDS, "ms"), (100.0, "%")


def bars_of_parts(parts: pd.DataFrame, ax: Axes, unit: Unit = IN_MS) -> Axes:
    """Draw the arms of ``step_parts.step_parts`` as stacked bars, with numbers where they fit."""
    scale, name_of_unit = unit
    longest = float(parts["step_s"].max()) * scale
    decimals = 2 if longest < 10 else 1 if longest < 300 else 0
    for place, row in enumerate(parts.to_dict("records")):
        begin = 0.0
        for name in LOOKS:
            length = row.get(name, 0.0) * scale
            _, shade, hatch = LOOKS[name]
            ax.barh(place, length, left=begin, height=0.7, color=shade, hatch=hatch, edgecolor="white", lw=0.4)
            if length > LEAST * longest:
                dark = name in ("useful_s", "imbalance_s", "planning_s", "optimizer_s")
                box = {"facecolor": shade, "edgecolor": "none", "pad": 1.0} if hatch else None
                shade = "white" if dark else "black"
                words, middle = f"{length:.{decimals}f}", begin + length / 2
                ax.text(middle, place, words, ha="center", va="center", fontsize=SMALL, bbox=box, color=shade)
            begin += length
        words = f"{begin:.{decimals}f} {name_of_unit}"
        ax.annotate(words, (begin, place), (4, 0), textcoords="offset points", va="center", fontsize=SMALL)
    ax.set_yticks(range(len(parts)), [figure_label(arm) for arm in parts["arm"]])
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(parts) - 0.45, -0.55)
    ax.set_xlim(0, 1.14 * longest)
    ax.grid(False, axis="y")
    return ax


def draw_step_parts(parts: Mapping[str, pd.DataFrame], unit: Unit = IN_MS) -> Figure:
    """Return a panel for each setting, by its heading, below one key of the parts.

    ``unit``: IN_PERCENT for parts over the baseline's step.
    """
    rows = [len(each) for each in parts.values()]
    figure, axes = page(
        len(parts), 1, height_cm=KEY_CM + ROW_CM * sum(rows) + FRAME_CM * len(rows),
        gridspec_kw={"height_ratios": rows},
    )  # fmt: skip
    for ax, (heading, each) in zip(axes, parts.items(), strict=True):
        bars_of_parts(each, headed(ax, heading), unit)
    words = "milliseconds of the mean step" if unit == IN_MS else "mean step over static's of the same launches, %"
    axes[-1].set_xlabel(words)
    there = [name for name in LOOKS if any((each[name].abs() > 0).any() for each in parts.values() if name in each)]
    handles = [
        Patch(facecolor=LOOKS[name][1], hatch=LOOKS[name][2], edgecolor="white", lw=0.4, label=LOOKS[name][0])
        for name in there
    ]
    figure.legend(
        handles=handles, loc="outside upper left", ncols=4, frameon=False, fontsize=SMALL, handlelength=1.2,
        columnspacing=1.2, borderaxespad=0.2,
    )  # fmt: skip
    return figure
