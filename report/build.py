"""``python -m report.build``: the report of ten pages and its appendix, as Markdown, HTML pages and PDFs.

Both are made of what is frozen in ``report/results/``, every interval anew from the records. With studies, ``python -m
report.build outputs/STUDY ...``, it writes the tables of these alone; folders of experiments.gpu may be among them.
``--freeze`` writes report and appendix into ``report/`` itself, to be committed, and fills the README's table and
figure; with studies it freezes these first.
"""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from analysis.freeze import freeze as freeze_study
from analysis.freeze import portable
from analysis.load import load_study
from analysis.terminal import command
from ddpsched.cli import guarded
from ddpsched.errors import DataError
from ddpsched.records import read_json, write_all, write_bytes, write_json
from ddpsched.visible_text import visible
from report import front, on_gpu
from report.figures import of_appendix, of_paper
from report.html import page
from report.pdf import TypstMissing, pdf
from report.render import FIGURES, report, tables
from report.results import GPU, MEASURED, STUDIES, Results, collect, read

HERE = Path(__file__).parent
FROZEN = HERE / "results"
DEFAULT_OUTPUT = Path("outputs/paper")
KEPT_OF_GPU = ("steps.parquet", "calibration-*.json")  # with which another call goes on


def build(results: Results, output: Path) -> Path:
    """Write the report, its appendix and their figures into a folder; return the path of the report's page."""
    of_report, of_tables = of_paper(results), of_appendix(results)
    appendix = tables(results, of_tables, "Appendix: tables of all studies", whole=True)
    return write(
        {output / "appendix": (appendix, of_tables), output / "report": (report(results, of_report), of_report)}
    )


def build_tables(results: Results, output: Path) -> Path:
    """Write the tables of studies as a report into a folder; return the path of its page."""
    figures = of_appendix(results)
    title = ", ".join([*results.studies, *["GPU"] * bool(results.gpus)])
    return write({output / "report": (tables(results, figures, title), figures)})


def write(documents: Mapping[Path, tuple[str, Mapping[str, bytes]]]) -> Path:
    """Write documents of one folder, by stem a text and its figures, where there is room for all, or else nothing.

    Each becomes ``<stem>.md``, ``.html`` and ``.pdf``, beside figures that are there and stay. Without the package that
    makes PDFs a note on standard error replaces the PDF; one of other results is deleted. Returns the last one's page.
    """
    made, lacking = dict[Path, bytes](), list[Path]()
    for stem, (text, figures) in documents.items():
        made |= {stem.parent / FIGURES / name: content for name, content in figures.items()}
        made |= {stem.with_suffix(".md"): text.encode(), stem.with_suffix(".html"): page(text, figures).encode()}
        path = stem.with_suffix(".pdf")
        try:
            made[path] = pdf(text, figures)
        except TypstMissing as missing:
            print(f"no {path.name}: {missing}", file=sys.stderr)
            lacking.append(path)
    (stem.parent / FIGURES).mkdir(parents=True, exist_ok=True)
    write_all(made)
    for path in lacking:
        path.unlink(missing_ok=True)
    return stem.with_suffix(".html")


def remove_other_figures(folder: Path) -> None:
    """Remove the figures that neither the report of a folder, nor its appendix, nor the README shows any more."""
    texts = [(folder / name).read_text(encoding="utf-8") for name in ("report.md", "appendix.md")]
    shown = {name for text in texts for name in re.findall(rf"{FIGURES}/([\w.-]+)", text)} | {Path(front.FIGURE).name}
    for path in (folder / FIGURES).glob("*.png"):
        if path.name not in shown:
            path.unlink()


def freeze(folders: Sequence[Path], frozen: Path = FROZEN) -> None:
    """Put studies and what experiments.gpu measured into the frozen results. Raises DataError for a trial on a CPU."""
    for folder in folders:
        if not (folder / MEASURED).exists():
            freeze_study(load_study(folder), frozen / STUDIES / folder.name)
            continue
        measured = portable(read_json(folder / MEASURED))
        if measured.get("smoke", True):
            raise DataError(f"{folder}: it was measured by a trial on a CPU (--smoke); measure a GPU to freeze it")
        target = frozen / GPU / on_gpu.slug(measured)
        target.mkdir(parents=True, exist_ok=True)
        write_json(target / MEASURED, measured)
        for file in (path for kind in KEPT_OF_GPU for path in folder.glob(kind)):
            write_bytes(target / file.name, file.read_bytes())


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the report, and print its path; return the exit code."""
    parser = argparse.ArgumentParser(
        prog=command("python -m report.build"), description="the report from frozen results, or the tables of studies"
    )
    parser.add_argument("studies", nargs="*", type=Path, metavar="STUDY", help="a study's folder, outputs/STUDY")
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, help=f"where to write ({DEFAULT_OUTPUT})")
    target.add_argument("--freeze", action="store_true", help="write into report/, to be committed")
    given = parser.parse_args(arguments)

    def body() -> None:
        if given.freeze:
            freeze(given.studies)
            path = build(results := read(FROZEN), HERE)
            front.update(HERE.parent / "README.md", results)
            remove_other_figures(HERE)
        elif given.studies:
            path = build_tables(collect(given.studies), given.output)
        else:
            path = build(read(FROZEN), given.output)
        print(visible(str(path)))

    return guarded(body)


if __name__ == "__main__":
    sys.exit(main())
