"""ddpsched runs ls: a line for each run."""

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ddpsched.monitor.durations import clock, local_time
from ddpsched.monitor.found import FoundRun, find_runs
from ddpsched.visible_text import visible

HEADINGS = ("run", "state", "steps", "policy", "ranks", "started", "took")
DROPPED = ("started", "ranks", "took", "policy")  # on a narrow terminal, in this order
LEAST_NAME = 12


def list_runs(folder: Path, as_json: bool) -> None:
    """Print the runs of a folder, the latest last. Raises DataError where there is no such folder."""
    runs, left_out = find_runs(folder)
    if as_json:
        rows = [{**asdict(run), "folder": str(run.folder), "name": run.name} for run in runs]
        print(json.dumps({"runs": rows, "left_out": {str(path): why for path, why in left_out.items()}}, indent=2))
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    lines = table(runs, width) if runs else [f"no runs in {folder}"]
    if left_out:
        lines += ["", f"left out: {len(left_out):,}", *(f"  {path}: {why}" for path, why in left_out.items())]
    print(visible("\n".join(lines), lines=True))


def table(runs: Sequence[FoundRun], width: int | None) -> list[str]:
    """Return a heading and a line for each run, no longer than ``width``, if given, where names allow it.

    Written here, as rich takes half a second for a thousand lines.
    """
    columns = dict(zip(HEADINGS, zip(*map(_cells, runs), strict=True), strict=True))
    widths = {name: max(len(name), *map(len, cells)) for name, cells in columns.items()}
    for name in DROPPED:
        if width is not None and sum(widths.values()) + 2 * len(widths) - 2 > width:
            del widths[name]
    if width is not None:
        others = sum(widths.values()) - widths["run"] + 2 * len(widths) - 2
        widths["run"] = min(widths["run"], max(LEAST_NAME, width - others))
    rows = [HEADINGS, *zip(*columns.values(), strict=True)]
    lines = []
    for row in rows:
        cells = [_fitted(cell, widths[name]) for name, cell in zip(HEADINGS, row, strict=True) if name in widths]
        lines.append("  ".join(cells).rstrip())
    return lines


def _cells(run: FoundRun) -> tuple[str, ...]:
    steps = "-" if run.steps is None else str(run.steps)
    if run.total_steps is not None and run.state != "done":
        steps += f"/{run.total_steps}"
    cells = (
        run.name, run.state if run.began else "never began", steps, run.plans_by, str(run.world_size or "-"),
        local_time(run.started), clock(run.wall_s),
    )  # fmt: skip
    return tuple(visible(cell) for cell in cells)


def _fitted(cell: str, width: int) -> str:
    """Return a cell of this width; one that is longer keeps its end, where names differ."""
    return cell.ljust(width) if len(cell) <= width else f"...{cell[len(cell) - width + 3 :]}"
