"""``python -m analysis outputs/STUDY``: figures and tables of a study, and the comparison in the terminal."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from analysis import tables
from analysis.draw import draw_study
from analysis.draw_bench import draw_bench
from analysis.draw_print import draw_print
from analysis.load import load_study
from analysis.terminal import command, comparison, console, verdicts
from ddpsched.command_exit import guarded
from ddpsched.decode import decode_json
from ddpsched.own_folder import refuse_special
from ddpsched.terminal import fitting


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the figures and tables of a study, and print the comparison; return the exit code."""
    parser = argparse.ArgumentParser(prog=command("python -m analysis"), description=__doc__)
    parser.add_argument("study", type=Path, help="a study's folder, outputs/STUDY")
    folder: Path = parser.parse_args(arguments).study
    return guarded(lambda: analyse(folder))


def analyse(folder: Path) -> None:
    """Write a study's figures and tables, and print the comparison. Raises DataError where it has no finished run."""
    out = console()
    study = load_study(folder)
    compared = draw_study(study)
    all_tables = tables.study_tables(compared)
    for setting, table in zip(compared, all_tables, strict=True):
        draw_bench(setting, table, folder / "figures")
        draw_print(setting, table, folder / "figures")
    tables.write(folder / "figures", all_tables, study.left_out)
    for table in all_tables:
        out.print(fitting(comparison(table), out))
        if (rows := verdicts(table)).row_count:
            out.print(fitting(rows, out))
        if table["between_steps"] is not None:
            gap_s, share = table["between_steps"]
            out.print(f"between two runs' steps: {1e3 * gap_s:.2f} ms, {share:.2%} of a step")
    if (pair := folder / "pair.json").exists():
        out.print(f"pair test: {_verdict_of(pair)}", soft_wrap=True)
    if study.left_out:
        out.print(f"left out: {len(study.left_out)} of {len(study.left_out) + len(study.runs)} runs")
    for name, reason in study.left_out.items():
        out.print(f"left out: {name}: {reason}")
    out.print(f"figures and tables: {folder / 'figures'}", soft_wrap=True)


def _verdict_of(pair: Path) -> str:
    """Return the verdict of a pair test; a damaged file is one line among the results, not their end."""
    try:
        refuse_special(pair)
        return str(decode_json(pair.read_bytes())["verdict"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{pair} cannot be read ({error}); run it again with: python -m experiments.benchmarks.pair"


if __name__ == "__main__":
    sys.exit(main())
