"""``python -m report.reproduce STUDY [key=value ...]``: run a frozen study again and compare its verdicts.

The fresh runs are in ``outputs/STUDY-again``; cut off, the same command goes on. Exit code 0 when at least 95 % of the
frozen verdicts on times and memory fall as they did, and all of those that no clock has a say in; else 1. With
``--compare FOLDER`` nothing is run: a finished study that did the same work is compared as it is. ``--freeze`` keeps
the records and the outcome for the report, beside those of earlier repeats.
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

from analysis.freeze import freeze
from analysis.launches import spans
from analysis.settings import AA
from analysis.terminal import console
from ddpsched.cli import guarded
from ddpsched.errors import DataError, RunError
from ddpsched.records import write_json
from experiments.study import load_study
from report.build import FROZEN
from report.conclusions import Conclusion, conclusions, undecided
from report.measures import arms, speed
from report.repeated import ENOUGH
from report.results import REPRODUCED, Results, collect, read
from report.same_work import check_planned, check_same_work, check_whole
from report.wording import file_name, significant, verdict

EVIDENCE = Path("experiments/evidence")  # the files of frozen studies
SAME, OTHER, UNSHOWN, NEW = "the same", "another", "not shown", "new"
STYLES = {SAME: "green", OTHER: "red", UNSHOWN: "red"}


def run_study(name: str, overrides: Sequence[str], frozen: Results, force: bool = False, whole: bool = False) -> Path:
    """Run a study anew; return the folder of its runs. Raises RunError where it fails.

    Raises DataError, before hours of running, where it would do other work than ``frozen``, or with ``whole`` less.
    Its name is another than the frozen one's, so that finished runs that were frozen are not taken for fresh ones.
    """
    file = str(EVIDENCE / f"{name}.toml")
    words = [f"study={name}-again", *overrides]
    runs = load_study(file, words).runs
    check_planned(frozen, [run.model_dump(exclude_none=True) for run in runs], file, whole)
    folder = runs[0].run_dir.parent
    command = [sys.executable, "-m", "experiments.sweep", file, *words, *["--force"] * force]
    code = subprocess.run(command, check=False).returncode
    if code:
        raise RunError(f"{file}: the sweep ended with exit code {code}; run the same command to go on")
    return folder


def verdicts(results: Results) -> list[Conclusion]:
    """Return the conclusions on all studies of results."""
    return conclusions(results.measured)


def compare(frozen: Sequence[Conclusion], fresh: Sequence[Conclusion]) -> list[dict[str, Any]]:
    """Return a row per conclusion with its outcome, by id.

    the same, another: a frozen conclusion that held or did not, judged again. not shown: the fresh study has no number
    for it, or launches that differ by too much to say. new: it alone has it. Conclusions that were not measured, or
    undecided, when they were frozen have no row.
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
            outcome = SAME if (new["holds"], new["verdict"]) == (old["holds"], old["verdict"]) else OTHER
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
            outcome = row["outcome"] if row["outcome"] != NEW else f"new: {verdict(row)}"
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
    add("--force", action="store_true", help="use calibrations of another model or device, as for a sweep")
    add("--freeze", action="store_true", help="keep records and outcome in the frozen results, for the report")
    add("--frozen", type=Path, default=FROZEN, help="frozen results to compare with (report/results)")
    given = parser.parse_intermixed_args(arguments)
    return guarded(lambda: _compared(given))


def _compared(given: argparse.Namespace) -> int:
    if given.compare and given.overrides:
        raise DataError(f"{' '.join(given.overrides)}: nothing is run with --compare; leave the overrides out")
    frozen = read(given.frozen)  # before hours of running
    if given.study not in frozen.studies:
        raise DataError(f"study {given.study}: is none of the frozen ones, {', '.join(frozen.studies)}; name one")
    alone = frozen.only(given.study)  # as verdicts depend on how many a page has
    folder = given.compare or run_study(given.study, given.overrides, alone, given.force, whole=given.freeze)
    fresh = collect([folder])
    check_same_work(alone, fresh, folder)
    if given.freeze:
        check_whole(alone, fresh, folder)
    before = verdicts(alone)
    rows = compare(before, verdicts(fresh))
    found, out = outcome(rows) | {"undecided": len(undecided(before))}, console()
    show(rows, out)
    counts = {each: sum(row["outcome"] == each for row in rows) for each in (SAME, OTHER, UNSHOWN, NEW)}
    out.print(", ".join(f"{each}: {number}" for each, number in counts.items()))
    if not found["timed"]:
        out.print("no frozen conclusion of this study was measured")
        return 1
    if given.freeze:
        devices = sorted({each.table["device"] for each in fresh.measured})
        began = min(at for each in fresh.measured for at, _ in spans(each.setting.runs))
        name = file_name(f"{given.study} {' '.join(devices)} {began[:16]}")  # another repeat has a file of its own
        (study,) = fresh.studies.values()
        freeze(study, given.frozen / REPRODUCED / name)
        about = {"study": given.study, "devices": devices, "throughputs": throughputs(fresh)}
        write_json(given.frozen / REPRODUCED / f"{name}.json", about | found)
    share = found["timed_same"] / found["timed"]
    out.print(f"{share:.1%} of {found['timed']} timed verdicts are the same; at least {ENOUGH:.0%} are asked for")
    out.print(f"{found['words_same']} of {found['words']} of them, words on a step time, are the same words")
    out.print(f"{found['computed_same']} of {found['computed']} that no clock has a say in; all are asked for")
    out.print(f"{found['undecided']} were undecided when they were frozen, and do not count")
    return 0 if share >= ENOUGH and found["computed_same"] == found["computed"] else 1


def throughputs(results: Results) -> list[dict[str, Any]]:
    """Return each arm's throughput over the baseline's, with the limits of its interval, a row an arm and setting."""
    rows = [(m, arm, speed(m, arm)) for m in results.measured for arm in (*arms(m), AA)]
    return [
        {"setting": m.table["label"], "arm": arm, **{end: row[end] for end in ("ratio", "low", "high")}}
        for m, arm, row in rows
        if row["ratio"]
    ]


def outcome(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return how many frozen verdicts there are and how many fell the same, and which did not.

    Of those on times and memory (timed), those of them that are words on a step time, as "faster" (words), and those
    that no clock has a say in (computed).
    """
    judged = [row for row in rows if row["outcome"] != NEW]
    families = {
        "timed": [row for row in judged if row["timed"]],
        "words": [row for row in judged if row["verdict"]],
        "computed": [row for row in judged if not row["timed"]],
    }
    found: dict[str, Any] = {}
    for name, mine in families.items():
        found |= {name: len(mine), f"{name}_same": sum(row["outcome"] == SAME for row in mine)}
    return found | {"others": [_changed(row) for row in judged if row["outcome"] != SAME]}


def _changed(row: dict[str, Any]) -> str:
    """Return a conclusion that did not fall the same, with what it was and what it is now."""
    then, now = (_answer(row[turn]) for turn in ("old", "new"))
    return f"{row['statement']} (then {then}, now {now})"


def _answer(conclusion: Conclusion | None) -> str:
    if conclusion is None or conclusion["value"] is None:
        return "not measured"
    return str(conclusion["verdict"] or verdict(conclusion))


if __name__ == "__main__":
    sys.exit(main())
