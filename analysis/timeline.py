"""The timeline of a run.

``python -m analysis.timeline outputs/STUDY/RUN [--steps A:B] [--output DIR]``
prints a table, a row per rank, and writes ``trace.json`` (for ui.perfetto.dev or
chrome://tracing) and ``timeline.png``. The terms are defined in ``analysis.waits``.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table

from analysis.draw import figures_folder, save
from analysis.draw_timeline import chosen_steps, draw_timeline
from analysis.terminal import command, console, number
from analysis.trace import write_trace
from analysis.transfers import GATHER
from analysis.waits import MEANS, RESOLUTION_S, SHARES, Timeline, by_rank, leads, load_timeline
from ddpsched.errors import DdpschedError
from ddpsched.terminal import fitting

MEAN_HEADS = (
    "compute\nms", "communi-\ncation\nms", "of it\nhidden\nms", "exposed\nms", "straggler\nwait\nms", "barrier\nms",
    "step\nms",
)  # fmt: skip
SHARE_HEADS = ("compute", "waiting", "exposed")


def terminal_table(timeline: Timeline) -> Table:
    """Return ``by_rank`` for the terminal, in milliseconds and percent of a step."""
    size, batch = timeline.config["world_size"], timeline.config["global_batch"]
    title = f"{timeline.path.name}: G = {size}, B = {batch}, {timeline.mode}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, collapse_padding=True)
    heads = ("rank", "last\nin %\nof steps", *MEAN_HEADS, *(f"{head}\n% of\nstep" for head in SHARE_HEADS))
    for head in heads:
        table.add_column("\n" * (2 - head.count("\n")) + head, justify="right", no_wrap=True)
    for row in by_rank(timeline.timed).reset_index().to_dict("records"):
        figures = {str(name): None if pd.isna(value) else value for name, value in row.items()}
        times = [number(figures[name], 1e3, ".4g") for name in MEANS]
        parts = [number(figures[f"{name[:-2]}_share"], 100, ".1f") for name in SHARES]
        table.add_row(str(figures["rank"]), number(figures["straggler_share"], 100, ".1f"), *times, *parts)
    return table


def sentences(timeline: Timeline) -> list[str]:
    """Return lines on the run's straggler, its clocks, and how its communication was measured."""
    timed, size = timeline.timed, int(timeline.config["world_size"])
    num_steps, first = timed["step"].nunique(), len(timeline.steps) - timed["step"].nunique()
    over = f"{num_steps} steps (the first {first} left out)"
    lines = [] if timeline.state == "done" else [f"the run is {timeline.state}: these are the steps so far"]
    if size == 1:
        return [*lines, f"over {over}: a single rank has no others to wait for"]
    share = by_rank(timed)["straggler_share"]
    who = f"rank {share.idxmax()} was last in {share.max():.1%}" if share.max() else "no rank was surely last in any"
    lines.append(f"{who} of {over}; an even share is {1 / size:.1%}")
    waited = timed.groupby("step")["straggler_wait_s"].sum().mean() / (size - 1)
    lines.append(f"each other rank waits {waited * 1e3:.3g} ms a step for the last one on average")
    return [*lines, *_on_clocks(timeline), *_on_communication(timeline)]


def _on_clocks(timeline: Timeline) -> list[str]:
    lead = leads(timeline.timed)
    decided, beyond = int(lead["decided"].sum()), "the clocks' uncertainty" if timeline.clocks else "0"
    line = f"the last rank is ready {lead['lead_s'].median() * 1e3:.3g} ms after the one before it (median), "
    line += f"and by more than {beyond} in {decided} of {len(lead)} steps"
    line += "; the others are undecided" if decided < len(lead) else ""
    offsets = ", ".join(f"{c.rank}: {c.offset_s:+.6f} s ± {c.uncertainty_s * 1e6:.0f} µs" for c in timeline.clocks)
    return [line, *([f"added to the ranks' clocks: {offsets}"] if offsets else [])]


def _on_communication(timeline: Timeline) -> list[str]:
    timed = timeline.timed
    if timeline.mode != "distributed":
        return []
    lines: list[str] = []
    over = timed["straggler_wait_s"] - timed["wait_s"]
    if over.max() > RESOLUTION_S:
        rows = int((over > RESOLUTION_S).sum())
        lines.append(f"exposed communication below 0 was set to 0 in {rows} rows, by at most {over.max() * 1e6:.0f} µs")
    if any(t.label == GATHER for moved in timeline.transfers.values() for t in moved):
        lines.append("barriers are gathers of weights: a rank that comes early waits there, within its compute")
    if timed["comm_s"].notna().any() and not any(timeline.transfers.values()):
        lines.append(
            "communication includes waiting for ranks that launched later; executor.timeline=true separates the two"
        )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table of a run, and write its trace and figure; return the exit code."""
    parser = argparse.ArgumentParser(
        prog=command("python -m analysis.timeline"), description="Which rank did the others wait for?"
    )
    parser.add_argument("run", type=Path, help="a run's folder, outputs/STUDY/RUN")
    parser.add_argument("--steps", metavar="A:B", help="steps A to B - 1 in the figure; by default 5 around the middle")
    parser.add_argument("--output", type=Path, metavar="DIR", help="for trace.json and timeline.png (RUN/figures)")
    given = parser.parse_args(arguments)
    out = console()
    try:
        folder: Path = given.output or figures_folder(given.run)
        timeline = load_timeline(given.run)
        shown = chosen_steps(given.steps, timeline.steps)
    except DdpschedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    save(draw_timeline(timeline, shown), folder / "timeline.png")
    write_trace(timeline, folder / "trace.json")
    out.print(fitting(terminal_table(timeline), out))
    for line in sentences(timeline):
        out.print(line)
    out.print(f"figure and trace: {folder}", soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
