"""Loss against samples and against time, all arms of a setting in one figure."""

import textwrap
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from analysis.arms import UNITS, Arm, Compared
from analysis.curves import Curve, points
from analysis.style import GREY, LONGEST_TITLE, colour, dash
from ddpsched.visible_text import figure_label, visible


def draw_curves(compared: Compared) -> Figure:
    """Return the figure of training loss, dev loss and gradient norms, of each arm's lowest seed.

    The dev loss is drawn where there are several evaluations.
    """
    arms = [arm for arm in compared.arms if arm.curves[0] is not None]
    several = any(len(arm.runs[0].evaluations) > 1 for arm in arms)
    norms = any(arm.steps[0]["grad_norm"].notna().any() for arm in arms)
    rows = 1 + several + norms
    figure = Figure(figsize=(9.2, 1.6 + 3.0 * rows), layout="constrained")
    axes = figure.subplots(rows, 2, sharex="col", sharey="row", squeeze=False)
    title = visible(f"{compared.label}, {compared.setting.runs[0].device}", LONGEST_TITLE)
    figure.suptitle(textwrap.fill(title, 130), fontsize=10, x=0.01, ha="left", parse_math=False)
    draw_losses(arms, compared.window, axes[0])
    if several:
        draw_evaluations(arms, axes[1])
    if norms:
        draw_norms(arms, compared.window, axes[-1])
    axes[-1][0].set_xlabel(f"{UNITS[compared.unit]} seen")
    axes[-1][0].xaxis.set(major_locator=MaxNLocator(6), major_formatter=EngFormatter(sep=""))
    axes[-1][1].set_xlabel("time (s, logarithmic), sum of step times")
    if np.isfinite(compared.budget_s):
        axes[-1][1].set_xscale("log")
        _logarithmic(axes[-1][1].xaxis)
    for ax, budget in zip(axes.T, (compared.budget, compared.budget_s), strict=True):
        for panel in ax:
            panel.axvline(budget, color=GREY, lw=0.8, ls=":")
    if not arms:
        axes[0][0].text(0.5, 0.5, "no loss was measured", transform=axes[0][0].transAxes, ha="center", color=GREY)
    handles, labels = axes[0][0].get_legend_handles_labels()
    if handles:
        columns = 3 if max(map(len, labels)) > 32 else 4
        figure.legend(
            handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=8, handlelength=3
        )
    return figure


def draw_losses(arms: Sequence[Arm], window: float, panels: Sequence[Axes]) -> None:
    """Draw the training loss, the mean over the last ``window`` samples, into two panels: by samples and by time."""
    labels = [arm.label for arm in arms]
    lines = []
    for arm in arms:
        line = _first(arm)
        seen = points(line, window)
        loss = line.smoothed(seen, window)
        lines.append(loss)
        for ax, x in zip(panels, (seen, line.seconds_at(seen)), strict=True):
            ax.plot(x, loss, color=colour(arm.label), ls=dash(arm.label, labels), lw=1.5, label=figure_label(arm.label))
    panels[0].set_ylabel(f"training loss\n(mean of the last {window:,.0f})".replace(",", "\u2009"))
    _finish(panels)


def draw_evaluations(arms: Sequence[Arm], panels: Sequence[Axes]) -> None:
    """Draw the loss on the dev set after the step of each evaluation."""
    labels = [arm.label for arm in arms]
    for arm in arms:
        line, evaluations = _first(arm), arm.runs[0].evaluations
        at = _position(evaluations["step"], len(line.seen) - 1)
        for ax, x in zip(panels, (line.seen[at], line.seconds[at]), strict=True):
            ax.plot(x, evaluations["loss"], color=colour(arm.label), ls=dash(arm.label, labels), lw=1, marker="o", ms=3)
    panels[0].set_ylabel("dev loss")
    _finish(panels)


def draw_norms(arms: Sequence[Arm], window: float, panels: Sequence[Axes]) -> None:
    """Draw gradient norms before clipping, the mean over the steps that ended within the last ``window`` samples."""
    labels = [arm.label for arm in arms]
    for arm in arms:
        line = _first(arm)
        norms = arm.steps[0]["grad_norm"].astype("float64").to_numpy()
        ends, sums = line.seen[1:], np.cumsum(np.concatenate([[0.0], np.nan_to_num(norms)]))
        begins = np.minimum(np.searchsorted(ends, ends - window, side="right"), np.arange(len(ends)))
        means = (sums[1:] - sums[begins]) / (np.arange(1, len(sums)) - begins)
        for ax, x in zip(panels, (ends, line.seconds[1:]), strict=True):
            ax.plot(x, means, color=colour(arm.label), ls=dash(arm.label, labels), lw=1)
    panels[0].set_ylabel("gradient norm\n(before clipping)")
    if any(arm.steps[0]["grad_norm"].gt(0).any() for arm in arms):
        panels[0].set_yscale("log")
        _logarithmic(panels[0].yaxis)
    _finish(panels)


def _first(arm: Arm) -> Curve:
    line = arm.curves[0]
    assert line is not None, "arms without a loss are left out before"
    return line


def _position(steps: pd.Series, last: int) -> np.ndarray:
    """Return indices into a curve: evaluations count finished steps, and curves begin with 0 of them."""
    return np.minimum(steps.to_numpy(dtype=np.int64), last)


def _logarithmic(axis: Axis) -> None:
    """Set logarithmic ticks: equal speed ratios lie equally far apart, and slow arms do not squeeze the others."""
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    axis.set(major_locator=LogLocator(subs=(1, 2, 5)), major_formatter=plain, minor_formatter=NullFormatter())


def _finish(panels: Sequence[Axes]) -> None:
    for ax in panels:
        ax.grid(alpha=0.25, lw=0.5)
        ax.spines[["top", "right"]].set_visible(False)
        ax.margins(x=0.01)
