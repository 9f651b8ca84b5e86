"""Speed against order bias, and against peak memory: a named point an arm."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.labels import label_points
from analysis.style import GREY, MEBIBYTES, PEER, colour, page, tint

BIAS, SPEED = "order bias: 0 as shuffled, 1 steps of one length", "samples per second over static's"
FEW = 8  # arms whose names fit into half a page's width


def points_of_speed(found: pd.DataFrame, column: str, scale: float, ax: Axes, least: float) -> Axes:
    """Draw the arms of ``tradeoffs.tradeoffs`` as points: ``column`` times ``scale`` across, speed upwards.

    The axis spans at least ``least``, so that differences which mean nothing are not drawn large. Where there is a
    column ``named``, the others are small points without a name.
    """
    found = found.astype(dict.fromkeys(("speed", "low", "high", column), "float64"))  # frozen NaNs are None
    shown = found[np.isfinite(found[["speed", column]].to_numpy()).all(axis=1)]
    if shown.empty:
        ax.text(0.5, 0.5, "not measured in these runs", transform=ax.transAxes, ha="center", color=GREY)
        return ax
    arms = list(shown["arm"])
    shades = [colour(arm) if "named" in shown else tint(arm, arms) for arm in arms]
    across, speed = (shown[column] * scale).tolist(), shown["speed"].tolist()
    ax.axhline(1.0, color=GREY, lw=0.6)
    wide = _ends(shown, column)
    named = set(shown["arm"][shown["named"]] if "named" in shown else arms)
    for arm, x, y, low, high, shade in zip(arms, across, speed, shown["low"], shown["high"], shades, strict=True):
        if wide is not None and np.isfinite(span := wide.loc[arm].to_numpy() * scale).all():
            ax.plot(span, [y, y], color=shade, lw=0.8, alpha=0.5, solid_capstyle="butt")
        if np.isfinite([low, high]).all():
            ax.plot([x, x], [low, high], color=shade, lw=0.8, alpha=0.5, solid_capstyle="butt")
        # where points coincide, ours lie above others', which are larger so that they are seen
        size, order = (3, 2.0) if arm not in named else (4.5, 2.2) if shade != PEER else (6, 2.1)
        ax.plot([x], [y], "o", color=shade, ms=size, zorder=order)
    ends = shown[["low", "high"]].to_numpy().ravel()
    ax.xaxis.set_major_locator(MaxNLocator(5))
    reach = [] if wide is None else (wide.to_numpy().ravel() * scale).tolist()
    ax.set_xlim(*_wider([*across, *filter(np.isfinite, reach)], least))
    ax.set_ylim(*_wider([*speed, 1.0, *ends[np.isfinite(ends)].tolist()], 0.1))
    for x, y, arm, shade in zip(across, speed, arms, shades, strict=True):
        if arm in named:
            label_points(ax, [x], [y], [arm], [shade])
    return ax


def _ends(shown: pd.DataFrame, column: str) -> pd.DataFrame | None:
    """Return the ends of the intervals across by arm, where the table has them: ``peak_low`` for ``peak_bytes``."""
    names = [f"{column.partition('_')[0]}_{end}" for end in ("low", "high")]
    return shown.set_index("arm")[names].astype("float64") if set(names) <= set(shown) else None


def _wider(values: list[float], least: float) -> tuple[float, float]:
    """Return the limits of an axis that holds these values with room on both sides, ``least`` apart or more."""
    low, high = min(values), max(values)
    room = max(0.1 * (high - low), (least - (high - low)) / 2)
    return low - room, high + room


def draw_tradeoffs(found: pd.DataFrame, title: str = "", planned: pd.DataFrame | None = None) -> Figure:
    """Return the panel of order bias and that of peak memory, side by side where names are few.

    Without peaks the latter is left out. ``planned``: rows like those of ``found`` for the panel of order bias, of arms
    that were planned, not run; their ``speed`` is what their plans would allow.
    """
    if planned is not None:
        figure, (bias, memory) = page(1, 2, height_cm=8.5, title=title)
        points_of_speed(planned, "order_bias", 1.0, bias, 0.2).set_xlabel(BIAS)
        bias.set_ylabel("planned: static's slowest rank over the arm's")
        _peaks(found, memory)
        memory.set_ylabel(f"measured: {SPEED}")
        return figure
    few = len(found) <= FEW
    if not found["peak_bytes"].notna().any():
        figure, (bias,) = page(height_cm=7.5, title=title)
        points_of_speed(found, "order_bias", 1.0, bias, 0.2).set_xlabel(BIAS)
        bias.set_ylabel(SPEED)
        return figure
    shape = {"rows": 1, "columns": 2, "height_cm": 7.5} if few else {"rows": 2, "columns": 1, "height_cm": 18}
    figure, (bias, memory) = page(**shape, title=title, sharey=few)
    points_of_speed(found, "order_bias", 1.0, bias, 0.2).set_xlabel(BIAS)
    _peaks(found, memory)
    for ax in (bias,) if few else (bias, memory):
        ax.set_ylabel(SPEED)
    return figure


def _peaks(found: pd.DataFrame, ax: Axes) -> None:
    peak = float(np.nanmax(found["peak_bytes"].to_numpy(dtype="float64"), initial=0.0)) * MEBIBYTES
    points_of_speed(found, "peak_bytes", MEBIBYTES, ax, 0.1 * peak).set_xlabel("peak memory of a rank (MiB)")
