"""``python -m report.reproduce STUDY [key=value ...]``: run a frozen study again and compare its verdicts.

Exit code 0 when at least 95 % of the frozen verdicts fall as they did, else 1. With
``--compare FOLDER`` nothing is run: a finished study is compared as it is.
"""

import argparse
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
from report.build import FROZEN
from report.conclusions import Conclusion, conclusions
from report.results import Results, collect, read
from report.wording import significant, verdict

EVIDENCE = Path("experiments/evidence")  # the files of frozen studies
ENOUGH = 0.95  # of the verdicts
SAME, OTHER, UNSHOWN, NEW = "the same", "another", "not shown", "new"
STYLES = {SAME: "green", OTHER: "red", UNSHOWN: "red"}


def run_study(name: str, overrides: Sequence[str]) -> Path:
    """Run a study anew; return the folder of its runs. Raises RunError where it fails."""
    file = str(EVIDENCE / f"{name}.toml")
    folder = load_study(file, overrides).runs[0].run_dir.parent
    code = subprocess.run([sys.executable, "-m", "experiments.sweep", file, *overrides], check=False).returncode
    if code:
        raise RunError(f"{file}: the sweep ended with exit code {code}; run the same command to go on")
    return folder


def verdicts(results: Results) -> list[Conclusion]:
    """Return the conclusions on all studies of results."""
    return conclusions([each.view for each in results.measured])


def compare(frozen: Sequence[Conclusion], fresh: Sequence[Conclusion]) -> list[dict[str, Any]]:
    """Return one row per conclusion with its outcome, by id.

    the same, another: a frozen conclusion that held or did not, judged again. not shown: the fresh study has no number
    for it. new: it alone has it. Conclusions that were not measured when they were frozen have no row.
    """
    before, after = {c["id"]: c for c in frozen if c["holds"] is not None}, {c["id"]: c for c in fresh}
    rows: list[dict[str, Any]] = []
    for name in [*before, *(name for name in after if name not in {c["id"] for c in frozen})]:
        old, new = before.get(name), after.get(name)
        if old is None:
            outcome = NEW
        elif new is None or new["holds"] is None:
            outcome = UNSHOWN
        else:
            outcome = SAME if new["holds"] == old["holds"] else OTHER
        rows.append({"outcome": outcome, "old": old, "new": new, **(new or old or {})})
    return rows


def show(rows: Sequence[dict[str, Any]], out: Console) -> None:
    """Print the comparison, a table a setting."""
    for setting in dict.fromkeys(row["setting"] for row in rows):
        table = Table(title=setting, title_justify="left", show_edge=False)
        for heading in ("conclusion", "verdict", "frozen", "now", "threshold"):
            table.add_column(heading, justify="left" if heading in ("conclusion", "verdict") else "right")
        for row in (row for row in rows if row["setting"] == setting):
            values = [significant(side["value"]) if side else "-" for side in (row["old"], row["new"])]
            outcome = row["outcome"] if row["outcome"] != NEW else f"new: {verdict(row['holds'])}"
            styled = Text(outcome, style=STYLES.get(row["outcome"], ""))
            table.add_row(row["statement"], styled, *values, significant(row["threshold"]))
        out.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run or read a study, and print the comparison; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m report.reproduce", description="run again and compare verdicts")
    add = parser.add_argument
    add("study", metavar="STUDY", help=f"a frozen study's name: its file is {EVIDENCE}/STUDY.toml")
    add("overrides", nargs="*", metavar="key=value", help="overrides of the study, as for a sweep")
    add("--compare", type=Path, metavar="FOLDER", help="compare this finished study, run nothing")
    add("--frozen", type=Path, default=FROZEN, help="frozen results to compare with (report/results)")
    given = parser.parse_args(arguments)
    try:
        if given.compare and given.overrides:
            raise DataError(f"{' '.join(given.overrides)}: nothing is run with --compare; leave the overrides out")
        frozen = read(given.frozen)  # before hours of running
        if given.study not in frozen.studies:
            raise DataError(f"study {given.study}: is none of the frozen ones, {', '.join(frozen.studies)}; name one")
        folder = given.compare or run_study(given.study, given.overrides)
        # alone, as the fresh one is: verdicts depend on how many there are on a page
        rows = compare(verdicts(frozen.only(given.study)), verdicts(collect([folder])))
    except DdpschedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    out = console()
    show(rows, out)
    counts = {outcome: sum(row["outcome"] == outcome for row in rows) for outcome in (SAME, OTHER, UNSHOWN, NEW)}
    out.print(", ".join(f"{outcome}: {number}" for outcome, number in counts.items()))
    judged = counts[SAME] + counts[OTHER] + counts[UNSHOWN]
    if not judged:
        out.print("no frozen conclusion of this study was measured")
        return 1
    out.print(f"{counts[SAME] / judged:.1%} of {judged} verdicts are the same; at least {ENOUGH:.0%} are asked for")
    return 0 if counts[SAME] / judged >= ENOUGH else 1


if __name__ == "__main__":
    sys.exit(main())
