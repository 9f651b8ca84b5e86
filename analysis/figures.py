"""The five figures of a setting's steps, alone and on one page: a table and an ``ax`` in, the ``ax`` out.

``steps`` maps an arm's label to its ``metrics.per_step`` table. Single steps are faint points and their rolling median
is a line, because 300 noisy steps would cover each other. A panel shows at most six arms, each named at the end of its
line, and says which were not measured.
"""

import math
import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.labels import label_ends, name_beside, named
from analysis.style import GREY, LONGEST_TITLE, MEBIBYTES, MILLISECONDS, SMALL, dash, headed, page, shown_arms, tint
from ddpsched.visible_text import visible

Steps = Mapping[str, pd.DataFrame]


def window(num_steps: int) -> int:
    """Return the steps of the rolling median: about a twentieth of the run, odd, at least 5."""
    return max(5, num_steps // 20 // 2 * 2 + 1)


def rolling(values: "pd.Series[float]") -> "pd.Series[float]":
    """Return the rolling median of a column over the steps."""
    return values.rolling(window(len(values)), center=True, min_periods=1).median()


def per_step_lines(steps: Steps, column: str, scale: float, ax: Axes) -> Axes:
    """Draw one column over the steps for each arm, times ``scale``."""
    shown = shown_arms(list(steps))
    for arm in shown:
        table = steps[arm]
        values = table[column].astype("float64") * scale
        if values.notna().any():
            shade = tint(arm, shown)
            ax.plot(table.index, values, ".", color=shade, alpha=0.35, ms=2.2, mew=0, label="_steps")
            ax.plot(table.index, rolling(values), color=shade, ls=dash(arm, shown), lw=1.3, label=named(arm))
    ax.margins(x=0.01)
    beyond = _keep_in_view([steps[arm][column].dropna().to_numpy() * scale for arm in shown], ax)
    median = f"step (lines: medians of {window(max(map(len, steps.values())))})"
    if not all((steps[arm][column].dropna() == 0).all() for arm in shown):
        label_ends(ax)
    return _finish({arm: steps[arm] for arm in shown}, column, ax, median, beyond)


def _keep_in_view(columns: Sequence[npt.NDArray[np.float64]], ax: Axes) -> str:
    """End the axis below rare outliers (a first step, say) that would flatten the rest, and return their number."""
    values = np.concatenate(columns)
    if not len(values):
        return ""
    ax.set_ylim(bottom=0)
    top = 1.3 * float(np.percentile(values, 99))
    beyond = values[values > top]
    if not len(beyond) or top <= 0:
        return ""
    ax.set_ylim(top=top)
    most = float(beyond.max())
    up_to = f"{most:,.0f}" if most >= 1000 else f"{most:.4g}"
    return f"above the axis: {len(beyond)} {'step' if len(beyond) == 1 else 'steps'}, up to {up_to}"


def ecdf(steps: Steps, column: str, scale: float, ax: Axes, across: str) -> Axes:
    """Draw the share of steps at or below each value, one stair for each arm; values times ``scale``.

    Curves all end at 1, so the names stand at the right in order of the medians, which they give. The axis ends at the
    largest P99, and ``across``, its label, is followed by the number of steps beyond.
    """
    shown = shown_arms(list(steps))
    columns = {arm: np.sort((steps[arm][column] * scale).dropna().to_numpy()) for arm in shown}
    measured = {arm: values for arm, values in columns.items() if len(values)}
    for arm, values in measured.items():
        ax.ecdf(values, color=tint(arm, shown), ls=dash(arm, shown), lw=1.3, label=f"_{arm}")
    ax.set_ylim(0, 1.01)
    note = ""
    if measured:
        low = min(float(values[0]) for values in measured.values())
        high = max(float(np.percentile(values, 99)) for values in measured.values())
        ax.set_xlim(low - 0.05 * (high - low or low), high + 0.02 * (high - low or high))
        beyond = sum(int((values > ax.get_xlim()[1]).sum()) for values in measured.values())
        note = f"right of the axis: {beyond} {'step' if beyond == 1 else 'steps'}" if beyond else ""
        medians = {arm: float(np.median(values)) for arm, values in measured.items()}
        ordered = sorted(medians, key=lambda arm: medians[arm])
        name_beside(
            ax, [f"{_three_digits(medians[arm])}  {arm}" for arm in ordered], [tint(arm, shown) for arm in ordered]
        )
    return _finish({arm: steps[arm] for arm in shown}, column, ax, across, note)


def _three_digits(value: float) -> str:
    """Return a number with three digits, or all of those before the point.

    >>> _three_digits(0.01234), _three_digits(1234.5)
    ('0.0123', '1,234')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _finish(steps: Steps, column: str, ax: Axes, across: str, note: str) -> Axes:
    """Label the horizontal axis, with the arms without values and what lies beyond the axes below it."""
    absent = [arm for arm in steps if not steps[arm][column].notna().any()]
    if all((table[column].dropna() == 0).all() for table in steps.values()):  # of no values too
        words = "not measured in these runs" if len(absent) == len(steps) else "0 in every step"
        ax.text(0.5, 0.5, words, transform=ax.transAxes, ha="center", color=GREY, fontsize=SMALL)
        ax.tick_params(left=False, labelleft=False, bottom=False, labelbottom=False)
        return ax
    missing = visible(f"not measured: {', '.join(absent)}", LONGEST_TITLE) if absent else ""
    missing = "\n".join(textwrap.wrap(missing, 40))
    ax.set_xlabel("\n".join(filter(None, (across, note, missing))), fontsize=SMALL, parse_math=False)
    return ax


def draw_step_time(steps: Steps, title: str) -> Figure:
    """Return figure 1: the longest compute time over ranks, and the whole step."""
    figure, (upper, lower) = page(2, 1, height_cm=12, title=title)
    per_step_lines(steps, "max_compute_s", MILLISECONDS, upper).set_ylabel("longest compute (ms)")
    per_step_lines(steps, "step_s", MILLISECONDS, lower).set_ylabel("step (ms)")
    return figure


def draw_time_spread(steps: Steps, title: str) -> Figure:
    """Return figure 2: the spread over ranks of step times, 0 but for clocks and lateness, and of compute times."""
    figure, (upper, lower) = page(2, 1, height_cm=12, title=title)
    per_step_lines(steps, "std_step_s", MILLISECONDS, upper).set_ylabel("std over ranks,\nstep (ms)")
    per_step_lines(steps, "std_compute_s", MILLISECONDS, lower).set_ylabel("std over ranks,\ncompute (ms)")
    return figure


def draw_token_spread(steps: Steps, title: str) -> Figure:
    """Return figure 3: the spread of padded tokens over ranks."""
    figure, (ax,) = page(height_cm=6.5, title=title)
    per_step_lines(steps, "std_padded_tokens", 1.0, ax).set_ylabel("std over ranks\n(padded tokens)")
    return figure


def draw_memory_spread(steps: Steps, title: str) -> Figure:
    """Return figure 4: the spread of peak memory over ranks; the largest rank's peak, where they share a process."""
    figure, (ax,) = page(height_cm=6.5, title=title)
    column = _memory_column(steps)
    words = "std over ranks" if column.startswith("std") else "largest rank"
    per_step_lines(steps, column, MEBIBYTES, ax).set_ylabel(f"{words},\npeak memory (MiB)")
    return figure


def _memory_column(steps: Steps) -> str:
    spread = any(table["std_peak_memory_bytes"].notna().any() for table in steps.values())
    return "std_peak_memory_bytes" if spread else "max_peak_memory_bytes"


def draw_time_ecdf(steps: Steps, title: str) -> Figure:
    """Return figure 5: the distribution of both times over the steps."""
    figure, (left, right) = page(1, 2, height_cm=7, title=title, sharey=True)
    ecdf(steps, "max_compute_s", MILLISECONDS, left, "longest compute (ms); medians at the right")
    ecdf(steps, "step_s", MILLISECONDS, right, "step (ms); medians at the right")
    left.set_ylabel("share of steps")
    return figure


FIGURES = {
    "1-step-time": draw_step_time,
    "2-time-spread": draw_time_spread,
    "3-token-spread": draw_token_spread,
    "4-memory-spread": draw_memory_spread,
    "5-time-ecdf": draw_time_ecdf,
}


def draw_outline(steps: Steps, title: str = "", memory: Steps | None = None, processes: Steps | None = None) -> Figure:
    """Return the five figures on one page as small multiples; the spread of compute stands beside that of steps.

    On virtual ranks, which are played in turn, steps last equally long: their spread is that of ``processes``, steps of
    real ranks, or has no panel. Nor has memory without ``memory``, the steps of runs in processes of their own; of
    virtual ranks it is the largest rank's.
    """
    peak = _memory_column(memory or {})
    memory = {arm: table for arm, table in (memory or {}).items() if table[peak].notna().any()}
    memory_heading = "4  Spread of peak memory" if peak.startswith("std") else "4  Peak memory of the largest rank"
    panels: list[tuple[str, Steps, str, float, str]] = [
        ("2  Spread of steps", steps, "std_step_s", MILLISECONDS, "ms"),
        ("2  Spread of compute", steps, "std_compute_s", MILLISECONDS, "ms"),
        ("3  Spread of padded tokens", steps, "std_padded_tokens", 1.0, "tokens"),
        (memory_heading, memory, peak, MEBIBYTES, "MiB"),
    ]
    if all((table["std_step_s"].dropna() == 0).all() for table in steps.values()):
        panels[0] = ("2  Spread of steps, processes", processes or {}, *panels[0][2:])
    panels = [panel for panel in panels if panel[1]]
    rows = math.ceil((2 + len(panels)) / 2)
    figure, axes = page(rows, 2, height_cm=15 * rows / 3, title=title)
    step, *others = axes
    per_step_lines(steps, "step_s", MILLISECONDS, headed(step, "1  Step")).set_ylabel("ms")
    for ax, (heading, shown, column, scale, unit) in zip(others, panels, strict=False):
        per_step_lines(shown, column, scale, headed(ax, heading)).set_ylabel(unit)
        if column == "max_peak_memory_bytes":  # most of it is the model's, the same for all
            ax.set_ylim(bottom=0.95 * scale * min(table[column].min() for table in shown.values()))
    times, *left = others[len(panels) :]
    ecdf(steps, "step_s", MILLISECONDS, headed(times, "5  Distribution of steps"), "step (ms); medians at the right")
    times.set_ylabel("share of steps")
    for ax in left:
        ax.remove()
    return figure
