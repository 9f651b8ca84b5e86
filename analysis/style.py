"""The look of figures: size, type and grid of a printed page, and a colour and dashes for each arm."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from ddpsched.visible_text import visible

INCH_CM = 2.54
PAGE_CM = 16.0  # width of the text on A4
PRINT_DPI = 200
SMALL, BODY = 8, 9  # points
MOST_LINES = 6  # of a panel

# Okabe and Ito's palette, legible to colour-blind readers. matplotlib names it only from 3.11 on.
COLOURS = {
    "static": "#333333",
    "minmax": "#D55E00",
    "balanced": "#0072B2",
    "packed": "#009E73",
    "token_budget": "#CC79A7",
    "bins": "#56B4E9",
    "pool": "#E69F00",
}
SHADES = {"static (max_length)": "#999999"}  # one arm more than a colour has dashes for
CURRICULA = {  # longer names first
    "curriculum_local": {"static": "#D55E00"},
    "curriculum": {"static": "#0072B2", "token_budget": "#009E73"},
}
PEER = "#8A8A8A"  # other packages' batching
GREY, PALE = "#555555", "#DDDDDD"
DASHES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))  # arms of one policy share its colour
STRONGEST = "batch_rebalance"  # of the peers that keep static's gradient
FIRST = ("static", STRONGEST, "minmax", "balanced", "packed")  # the arms that a panel shows first

LONGEST_TITLE = 600  # characters
MILLISECONDS = 1e3  # of seconds
MEBIBYTES = 2.0**-20  # of bytes


def policy_of(arm: str) -> str:
    """Return the policy that an arm's label begins with.

    >>> policy_of("balanced (M = 4)"), policy_of("packed, W = 4")
    ('balanced', 'packed')
    """
    return arm.split(" ")[0].rstrip(",")


def colour(arm: str) -> str:
    """Return the colour of the arm's policy, the same in all figures; arms of a curriculum have other colours.

    Baselines are grey: static, and all peers.
    """
    sorts = next((kind for kind in CURRICULA if kind in arm), None)
    shade = SHADES.get(arm) if sorts is None else CURRICULA[sorts].get(policy_of(arm))
    return shade or COLOURS.get(policy_of(arm), PEER)


def tint(arm: str, arms: Sequence[str]) -> str:
    """Return the arm's colour, paler for the second and third of ``arms`` that share it.

    >>> tint("balanced", ["balanced"]), tint("balanced (M = 4)", ["balanced", "balanced (M = 4)"])
    ('#0072b2', '#66aad1')
    """
    kin = sorted((a for a in arms if colour(a) == colour(arm)), key=lambda a: (len(a), a))  # the shortest is plain
    place = kin.index(arm)
    share = (1.0, 0.6, 0.4)[min(place, 2)]
    red, green, blue = (1 - share * (1 - part) for part in to_rgb(colour(arm)))
    return to_hex((red, green, blue))


def dash(arm: str, arms: Sequence[str]) -> Any:
    """Return the arm's dashes: solid for the first arm of a colour, then the others."""
    return DASHES[[a for a in arms if colour(a) == colour(arm)].index(arm) % len(DASHES)]


def shown_arms(arms: Sequence[str], most: int = MOST_LINES) -> list[str]:
    """Return the arms that a panel shows, in their own order: at most ``most``, one of each main policy first.

    >>> shown_arms(["static", "A/A", "bins", "pool", "balanced", "balanced (M = 4)", "packed"], 4)
    ['static', 'balanced', 'balanced (M = 4)', 'packed']
    """

    def place(arm: str) -> tuple[int, int]:
        turn = [a for a in arms if policy_of(a) == policy_of(arm)].index(arm)
        known = FIRST.index(policy_of(arm)) if policy_of(arm) in FIRST else len(FIRST)
        others = known == len(FIRST) or (known == 0 and turn > 0)  # and static with options
        return len(arms) if others else turn, known

    chosen = sorted((arm for arm in arms if arm != "A/A"), key=place)[:most]
    return [arm for arm in arms if arm in chosen]


def page(
    rows: int = 1, columns: int = 1, *, height_cm: float, title: str = "", width_cm: float = PAGE_CM, **subplots: Any
) -> tuple[Figure, list[Axes]]:
    """Return an empty figure of print size and its panels, row by row. ``subplots``: options of ``Figure.subplots``."""
    # Figure() and not pyplot: no global state, and no window system on a server
    figure = Figure(figsize=(width_cm / INCH_CM, height_cm / INCH_CM), dpi=PRINT_DPI, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **subplots)
    if title:  # a device may have a $ in its name
        shown = visible(title, LONGEST_TITLE, lines=True)
        figure.suptitle(shown, fontsize=BODY, x=0.01, ha="left", parse_math=False)
    return figure, [dressed(ax) for ax in axes.flat]


def dressed(ax: Axes) -> Axes:
    """Return the panel with the type, grid and frame that all figures share."""
    ax.tick_params(labelsize=SMALL, length=2.5, width=0.6, color=GREY)
    ax.xaxis.label.set_fontsize(SMALL)
    ax.yaxis.label.set_fontsize(SMALL)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set(linewidth=0.6, color=GREY)
    ax.grid(alpha=0.25, lw=0.5)
    ax.set_axisbelow(True)
    return ax


def headed(ax: Axes, text: str) -> Axes:
    """Return the panel with a heading at its left."""
    ax.set_title(visible(text, LONGEST_TITLE, lines=True), fontsize=BODY, loc="left", pad=4, parse_math=False)
    return ax


def in_doublings(ax: Axes, values: Sequence[float]) -> None:
    """Make the horizontal axis logarithmic with these values as its ticks, from the first to the last."""
    ax.set_xscale("log")
    ax.set_xlim(min(values) / 1.2, max(values) * 1.05)
    ax.xaxis.set_major_locator(FixedLocator(sorted(set(values))))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    ax.xaxis.set_minor_locator(NullLocator())


def logarithmic(ax: Axes, values: Sequence[float]) -> None:
    """Make the vertical axis logarithmic, from just below the least of the values to just above the largest."""
    low, high = float(np.min(values)), float(np.max(values))
    ax.set_yscale("log")
    ax.set_ylim(low / 1.06, high * 1.06)
    labelled = (1,) if high / low > 300 else (1, 2, 5) if high / low > 30 else (1, 1.5, 2, 3, 4, 6)  # of each decade
    ax.yaxis.set_major_locator(LogLocator(subs=labelled))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_locator(NullLocator())
