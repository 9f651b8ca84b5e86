"""A few steps of a run's timeline as a figure: a lane per rank, with the last rank and the others' waits.

Below each rank's lane a thin one shows when its collectives were under way, where
the run wrote timeline files; ``comm_s`` alone has their duration, but not the time.
Where weights are gathered for each micro-batch, it also shows for how long a rank
had come to a gather before the last one did: ranks meet there.
"""

import itertools
import re
import textwrap
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis.style import GREY, LONGEST_TITLE, MILLISECONDS
from analysis.transfers import GATHER
from analysis.waits import Timeline
from ddpsched.errors import DataError
from ddpsched.visible_text import visible

SHOWN_STEPS, MOST_STEPS = 5, 40
LETTER = 0.075  # inches of a letter in the steps' names

# of Okabe and Ito's palette, as in the other figures; waiting is grey
COMPUTE, STRAGGLER, EXPOSED, UPDATE, COMMUNICATION = "#56B4E9", "#D55E00", "#CC79A7", "#009E73", "#E69F00"
WAIT, MEETING = "#D0D0D0", "#8C8C8C"
PERHAPS = "hatched"
BAR, THIN = (-0.40, 0.56), (0.20, 0.16)  # top and height of both lanes about a rank's line


def chosen_steps(text: str | None, steps: Sequence[int]) -> list[int]:
    """Return the steps to draw: of ``"10:15"``, [10, 11, 12, 13, 14]; without text the middle ones.

    Raises DataError for another form, for none or too many steps, and for steps that the run does not have.
    """
    if text is None:
        first = max(0, (len(steps) - SHOWN_STEPS) // 2)
        return list(steps[first : first + SHOWN_STEPS])
    allowed = f"give A:B, steps A to B - 1, at most {MOST_STEPS}, within {steps[0]}:{steps[-1] + 1}"
    bounds = re.fullmatch(r"(\d+):(\d+)", text)
    if bounds is None:
        raise DataError(f"--steps {text}: {allowed}")
    wanted = range(int(bounds[1]), int(bounds[2]))
    if not 0 < len(wanted) <= MOST_STEPS or not set(wanted) <= set(steps):
        raise DataError(f"--steps {text}: {allowed}")
    return list(wanted)


def draw_timeline(timeline: Timeline, steps: Sequence[int]) -> Figure:
    """Return the figure of these steps: time to the right, ranks downwards.

    A dashed line marks the time at which the last rank of a step was ready.
    """
    shown = timeline.table[timeline.table["step"].isin(steps)]
    size = int(timeline.config["world_size"])
    figure = Figure(figsize=(max(9.0, 2 + 0.3 * len(steps)), 2.1 + 0.5 * size), layout="constrained")
    ax = figure.subplots()
    origin_s = float(shown["began_at_s"].min())
    for rank in range(size):
        _lane(ax, shown[shown["rank"] == rank], rank, origin_s)
        moved = [t for step in steps for t in timeline.transfers.get((step, rank), [])]
        met = [t for t in moved if t.label == GATHER and t.launched_s < t.begin_s]
        spans = [_span(t.launched_s - origin_s, t.begin_s - t.launched_s) for t in met]
        ax.broken_barh(spans, (rank + THIN[0], THIN[1]), color=MEETING, lw=0)
        spans = [_span(t.begin_s - origin_s, t.end_s - t.begin_s) for t in moved]
        ax.broken_barh(
            spans, (rank + THIN[0], THIN[1]), color=COMMUNICATION, lw=0.7
        )  # a line, so that the shortest are visible
    ends = shown["done_at_s"] + shown[["vote_s", "optimizer_s"]].fillna(0.0).sum(axis=1) - origin_s
    ax.set_xlim(0, ends.max() * MILLISECONDS)
    ax.set_ylim(size - 0.5, -0.5)
    ax.set_yticks([rank + BAR[0] + BAR[1] / 2 for rank in range(size)], [f"rank {rank}" for rank in range(size)])
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    if not _name_steps(ax, shown, origin_s, figure.get_figwidth()):
        figure.set_figheight(figure.get_figheight() + 0.8)
    ax.set_xlabel(f"ms since step {steps[0]} began, {origin_s:.2f} s into the run")
    title = f"{timeline.path.name}: G = {size}, B = {timeline.config['global_batch']}, {timeline.mode}, "
    title += f"{timeline.environment.get('device', 'unknown device')}, seed {timeline.config['seed']}"
    figure.suptitle(textwrap.fill(visible(title, LONGEST_TITLE), 110), fontsize=10, x=0.01, ha="left", parse_math=False)
    _legend(figure, timeline, shown)
    return figure


def _span(begin_s: float, length_s: float) -> tuple[float, float]:
    return begin_s * MILLISECONDS, length_s * MILLISECONDS


def _lane(ax: Axes, rows: pd.DataFrame, rank: int, origin_s: float) -> None:
    """Draw one rank's steps, block after block; what was not measured takes no room."""
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows.fillna(0.0).to_dict("records"):
        waited = min(row["straggler_wait_s"], row["wait_s"])
        at = row["began_at_s"] - origin_s
        for kind, length in (
            (STRAGGLER if row["straggler"] else PERHAPS if row["maybe_last"] else COMPUTE, row["compute_s"]),
            (WAIT, waited),
            (EXPOSED, row["wait_s"] - waited),
            (UPDATE, row["vote_s"] + row["optimizer_s"]),
        ):
            spans[kind].append(_span(at, length))
            at += length
    for kind, blocks in spans.items():
        ax.broken_barh(blocks, (rank + BAR[0], BAR[1]), lw=0, **_look(kind))


def _look(kind: str) -> dict[str, Any]:
    hatched = {"facecolor": COMPUTE, "edgecolor": STRAGGLER, "hatch": "////"}
    return hatched if kind == PERHAPS else {"facecolor": kind}


def _name_steps(ax: Axes, shown: pd.DataFrame, origin_s: float, inches: float) -> bool:
    """Write each step's last rank above the lanes; return whether the names fit side by side.

    Where they do not, they are upright. A step that is still too short for its name has only its dashed line.
    """
    places: list[float] = []
    names: list[str] = []
    for step, rows in shown.groupby("step"):
        ready = (rows["ready_at_s"].max() - origin_s) * MILLISECONDS
        ax.axvline(ready, color=GREY, lw=0.8, ls="--", zorder=0)
        places.append((ready + (rows["began_at_s"].min() - origin_s) * MILLISECONDS) / 2)
        last = rows.loc[rows["straggler"], "rank"]
        names.append(f"step {step}\n" + (f"rank {last.iloc[0]} last" if len(last) else "undecided"))
    per_inch = ax.get_xlim()[1] / (inches - 1.2)
    widest = max(len(line) for name in names for line in name.splitlines())
    flat = all(b - a > widest * LETTER * per_inch for a, b in itertools.pairwise(places))
    kept: list[int] = []
    for turn, place in enumerate(places):
        if flat or not kept or place - places[kept[-1]] > 2.2 * LETTER * per_inch:
            kept.append(turn)
    labels = [names[turn] if flat else names[turn].replace("\n", ": ") for turn in kept]
    above = ax.secondary_xaxis("top")
    above.set_xticks([places[turn] for turn in kept], labels, fontsize=8, rotation=0 if flat else 90)
    above.tick_params(length=0)
    above.spines["top"].set_visible(False)
    return flat


def _legend(figure: Figure, timeline: Timeline, shown: pd.DataFrame) -> None:
    """Add a legend of the kinds of blocks that the figure has."""
    moved = itertools.chain(*timeline.transfers.values())
    undecided = shown["maybe_last"] & ~shown["straggler"]
    entries = {
        "compute": (COMPUTE, not shown["maybe_last"].all()),
        "compute of the last rank": (STRAGGLER, shown["straggler"].any()),
        "waiting for the last rank": (WAIT, shown["straggler_wait_s"].max() > 0),
        "exposed communication": (EXPOSED, shown["exposed_s"].max() > 0),
        "vote, optimizer": (UPDATE, shown[["vote_s", "optimizer_s"]].max().max() > 0),
        "communication under way": (COMMUNICATION, any(timeline.transfers.values())),
        "at a gather, until the last rank comes": (MEETING, any(t.label == GATHER for t in moved)),
        "compute, perhaps of the last rank": (PERHAPS, undecided.any()),
    }
    handles = [Patch(lw=0, label=label, **_look(kind)) for label, (kind, present) in entries.items() if present]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
