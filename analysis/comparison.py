"""``python -m analysis.comparison outputs/STUDY``: all arms of each setting side by side.

Writes ``figures/comparison.json`` and a figure of loss curves a setting, and prints the tables.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis.arms import Compared, compare_all, tables
from analysis.draw import figures_folder, save
from analysis.draw_curves import draw_curves
from analysis.load import load_study
from analysis.ratios import judged
from analysis.terminal import console, side_by_side
from ddpsched.errors import DdpschedError
from ddpsched.records import write_json
from ddpsched.terminal import fitting


def write(settings: Sequence[Compared], folder: Path) -> list[dict[str, Any]]:
    """Write ``comparison.json`` and a figure a setting into ``folder``; return the tables."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = judged([compared.setting for compared in settings], "step_s")
    content = [tables(compared, each) for compared, each in zip(settings, rows, strict=True)]
    write_json(folder / "comparison.json", content)
    for compared in settings:
        save(draw_curves(compared), folder / f"{compared.slug}-loss.png")
    return content


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the comparison of a study's settings, and print it; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m analysis.comparison", description=__doc__)
    parser.add_argument("study", type=Path, help="a study's folder, outputs/STUDY")
    folder: Path = parser.parse_args(arguments).study
    out = console()
    try:
        study = load_study(folder)
        content = write(compare_all(study.runs), figures_folder(folder))
    except DdpschedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for table in content:
        out.print(fitting(side_by_side(table), out))
    for name, reason in study.left_out.items():
        out.print(f"left out: {name}: {reason}", markup=False)
    out.print(f"figures and comparison.json: {folder / 'figures'}", markup=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
