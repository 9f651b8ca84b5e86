"""``python -m report.reproduce [key=value ...]``: run the study again and compare it with the frozen report.

Exit code 0 when every frozen conclusion that held holds again, else 1. With
``--compare FOLDER`` nothing is run: a finished study is compared as it is.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from analysis.terminal import console
from ddpsched.errors import DataError, DdpschedError, RunError
from experiments.study import load_study
from report.build import DEFAULT_OUTPUT, FROZEN, build
from report.conclusions import Conclusion
from report.results import Results, all_conclusions, collect, filled, read
from report.wording import significant, verdict

STUDIES = ("experiments/study.toml", "experiments/yardstick.toml")
HELD, BROKEN, UNSHOWN, NEW = "held", "did not hold", "not shown", "new"
STYLES = {HELD: "green", BROKEN: "red", UNSHOWN: "red"}


def run_studies(files: Sequence[str], overrides: Sequence[str]) -> list[Path]:
    """Run studies, each in a separate process; return the folders of their runs. Raises RunError where one fails."""
    # a yardstick counts one whole epoch: of the overrides, it takes only those of data and outputs
    words = {
        file: [word for word in overrides if "yardstick" not in file or word.startswith(("data.", "outputs="))]
        for file in files
    }
    folders = {run.run_dir.parent: None for file in files for run in load_study(file, words[file]).runs}
    for file in files:
        code = subprocess.run([sys.executable, "-m", "experiments.sweep", file, *words[file]], check=False).returncode
        if code:
            raise RunError(f"{file}: the sweep ended with exit code {code}; run the same command to go on")
    return list(folders)


def frozen_conclusions(folder: Path, studies: set[str]) -> list[Conclusion]:
    """Return the conclusions of the frozen report on these studies."""
    study_of = of_studies(read(folder))
    frozen: list[Conclusion] = json.loads((folder / "conclusions.json").read_text(encoding="utf-8"))
    return [c for c in frozen if study_of[c["id"].partition("@")[2]] in studies]


def of_studies(results: Results) -> dict[str, str]:
    """Return the names of the studies by their settings' slugs."""
    set_ups = results.set_ups | {setting["slug"]: setting for setting in results.comparison}
    return {slug: set_up["config"]["study"] for slug, set_up in set_ups.items()}


def compare(frozen: Sequence[Conclusion], fresh: Sequence[Conclusion]) -> list[dict[str, Any]]:
    """Return one row per conclusion with its outcome.

    held, did not hold: a frozen conclusion that held, checked again. not shown: it
    held, and the fresh study has no number for it. new: the fresh study alone has it.
    A conclusion that did not hold when it was frozen does not affect the exit code:
    its outcome is "holds now" or "still does not hold".
    """
    before, after = {c["id"]: c for c in frozen}, {c["id"]: c for c in fresh}
    rows: list[dict[str, Any]] = []
    for name in [*before, *(name for name in after if name not in before)]:
        old, new = before.get(name), after.get(name)
        holds = new["holds"] if new else None
        if old is None:
            outcome = NEW
        elif old["holds"]:
            outcome = {True: HELD, False: BROKEN, None: UNSHOWN}[holds]
        else:
            outcome = {True: "holds now", False: "still does not hold", None: "still not shown"}[holds]
        rows.append({"outcome": outcome, "old": old, "new": new, **(new or old or {})})
    return rows


def show(rows: Sequence[dict[str, Any]], out: Console) -> None:
    """Print the comparison, a table a setting."""
    for setting in dict.fromkeys(row["setting"] for row in rows):
        table = Table(title=setting, title_justify="left", show_edge=False)
        for heading in ("conclusion", "outcome", "frozen", "now", "threshold"):
            table.add_column(heading, justify="left" if heading in ("conclusion", "outcome") else "right")
        for row in (row for row in rows if row["setting"] == setting):
            values = [significant(side["value"]) if side else "-" for side in (row["old"], row["new"])]
            outcome = row["outcome"] if row["outcome"] != NEW else f"new: {verdict(row['holds'])}"
            styled = Text(outcome, style=STYLES.get(row["outcome"], ""))
            table.add_row(row["statement"], styled, *values, significant(row["threshold"]))
        out.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run or read the studies, build the report and print the comparison; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m report.reproduce", description="run again and compare conclusions")
    add = parser.add_argument
    add("overrides", nargs="*", metavar="key=value", help="overrides of the study, as for a sweep")
    add("--study", action="append", metavar="TOML", help=f"a study to run, again for another ({' and '.join(STUDIES)})")
    add("--compare", nargs="+", type=Path, metavar="FOLDER", help="compare these finished studies, run nothing")
    add("--frozen", type=Path, default=FROZEN, help="frozen results to compare with (report/results)")
    add("--output", type=Path, default=DEFAULT_OUTPUT, help=f"where the rebuilt report goes ({DEFAULT_OUTPUT})")
    given = parser.parse_args(arguments)
    try:
        if given.compare and given.overrides:
            raise DataError(f"{' '.join(given.overrides)}: nothing is run with --compare; leave the overrides out")
        frozen = read(given.frozen)  # before hours of running
        fresh: Results = collect(given.compare or run_studies(given.study or STUDIES, given.overrides))
        page = build(fresh if fresh.settings else filled(fresh, frozen), given.output)
        rows = compare(frozen_conclusions(given.frozen, set(of_studies(fresh).values())), all_conclusions(fresh))
    except DdpschedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    out = console()
    show(rows, out)
    counts = {outcome: sum(row["outcome"] == outcome for row in rows) for outcome in (HELD, BROKEN, UNSHOWN, NEW)}
    out.print(", ".join(f"{outcome}: {number}" for outcome, number in counts.items()))
    out.print(str(page), soft_wrap=True)
    if not counts[HELD]:
        out.print("no frozen conclusion of this study could be confirmed")
    return 0 if counts[HELD] and not counts[BROKEN] + counts[UNSHOWN] else 1


if __name__ == "__main__":
    sys.exit(main())
