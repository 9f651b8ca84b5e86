"""``python -m report.build [STUDY ...] [--output DIR]``: the report as Markdown, one HTML page and a PDF.

Without a study it reads the local ``outputs/study*`` that have finished (and
``outputs/yardstick*`` beside them), ``outputs/policies*`` and ``outputs/gpu*``, and for what is missing the results
frozen in ``report/results/``. ``--freeze`` makes these: it writes into ``report/`` itself and fills
the README's table; parts without a study stay as they are.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from analysis.load import load_study
from ddpsched.errors import DataError, DdpschedError
from ddpsched.records import read_json
from ddpsched.visible_text import visible
from report import front
from report.html import page
from report.pdf import TypstMissing, pdf
from report.render import markdown
from report.results import COMPARISON, GPU, MEASURED, Results, collect, filled, read, redrawn, write

HERE = Path(__file__).parent
FROZEN = HERE / "results"
DEFAULT_OUTPUT = Path("outputs/paper")


def build(results: Results, output: Path) -> Path:
    """Write ``report.md``, ``.html`` and ``.pdf``, and ``results/``, under ``output``; return the path of the page."""
    results = redrawn(results)
    write(results, output / "results")
    return write_document(markdown(results, "results/figures"), results.figures, output / "report")


def write_document(text: str, figures: Mapping[str, bytes], stem: Path) -> Path:
    """Write a document as ``<stem>.md``, ``.html`` and ``.pdf``; return the path of the page.

    Without the package that makes PDFs a note on standard error replaces the PDF; one of other results is deleted.
    """
    path = stem.with_suffix(".html")
    stem.with_suffix(".md").write_text(text, encoding="utf-8")
    path.write_text(page(text, figures), encoding="utf-8")
    stem.with_suffix(".pdf").unlink(missing_ok=True)
    try:
        stem.with_suffix(".pdf").write_bytes(pdf(text, figures))
    except TypstMissing as missing:
        print(f"no {stem.name}.pdf: {missing}", file=sys.stderr)
    return path


def finished(outputs: Path) -> list[Path]:
    """Return local studies in which all runs are done; yardsticks only beside a full study."""
    studies, yardsticks, comparisons = (
        [folder for folder in sorted(outputs.glob(f"{name}*")) if _is_done(folder)]
        for name in ("study", "yardstick", COMPARISON)
    )
    gpus = [folder for folder in sorted(outputs.glob(f"{GPU}*")) if _is_of_gpu(folder)]
    return studies + (yardsticks if studies else []) + comparisons + gpus


def _is_of_gpu(folder: Path) -> bool:
    """Return whether experiments.gpu wrote this folder, and not in a trial on a CPU."""
    return (folder / MEASURED).exists() and not read_json(folder / MEASURED).get("smoke", True)


def _is_done(folder: Path) -> bool:
    try:
        return not load_study(folder).left_out
    except DataError:
        return False


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the report, and print its path; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m report.build", description="the report, from studies or frozen results"
    )
    parser.add_argument("studies", nargs="*", type=Path, metavar="STUDY", help="a study's folder, outputs/STUDY")
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, help=f"where to write ({DEFAULT_OUTPUT})")
    target.add_argument("--freeze", action="store_true", help="write into report/, to be committed")
    given = parser.parse_args(arguments)
    try:
        studies = given.studies or finished(Path("outputs"))
        results = collect(studies)
        if given.freeze or not given.studies or not results.settings:
            results = filled(results, read(FROZEN))
            studies = [*studies, FROZEN]
        print(visible(f"from {', '.join(map(str, studies))}"), file=sys.stderr)
        path = build(results, HERE if given.freeze else given.output)
        if given.freeze:
            front.update(HERE.parent / "README.md", results)
    except DdpschedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(visible(str(path)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
