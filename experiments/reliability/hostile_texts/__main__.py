"""Count what hostile texts do. ``python -m experiments.reliability.hostile_texts [--count 200] [--seed 0] [--freeze]``.

Each case puts one text into one field, in a sandbox of its own, and runs the real readers and writers over it. The exit
code is 0 only where no page has an active node, no cell is a formula, nothing raw reaches the terminal or a log, no
traceback is printed, and no file outside the sandbox is made, changed or deleted.
"""

import contextlib
import io
import logging
import os
import shutil
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Annotated
from unittest.mock import patch

import typer

from analysis.load import load_study
from experiments.reliability.findings import Finding, Freeze, report
from experiments.reliability.hostile_texts import fields, look
from experiments.reliability.hostile_texts.texts import hostile_text
from report.html import page
from report.results import Results

CASES = ("run", "run", "config", "data", "lengths", "calibration", "order")
DRAWN = 40  # of so many cases one draws its figures
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@dataclass
class Tally:
    """Counts of cases and pages, and what was found."""

    cases: int = 0
    pages: int = 0
    faults: list[str] = field(default_factory=list)


def checked(count: int, seed: int) -> Tally:
    """Run ``count`` cases and return what was found."""
    tally, random = Tally(), Random(seed)
    with tempfile.TemporaryDirectory(prefix="ddpsched-hostile-") as name, _apart(Path(name)) as root:
        (root / "canary").mkdir()
        (root / "canary" / "kept").write_text("mine")
        templates = fields.Templates.made(root / "templates")
        links = look.links_of(_harmless_page(templates))
        os.environ["DDPSCHED_CACHE"] = str(root / "cases" / "sandbox" / "cache")
        for number in range(count):
            sandbox = root / "cases" / "sandbox"
            sandbox.mkdir(parents=True)
            before = look.snapshot(root, sandbox)
            kind, text = random.choice(CASES), hostile_text(random)
            if random.random() < 0.1:
                text = str(root / "canary" / "kept")
            found = [*_case(kind, random, text, sandbox, templates, number % DRAWN == 0)]
            found += _looked_at(sandbox, links, tally)
            after = look.snapshot(root, sandbox)
            found += [f"outside: {each}" for each in sorted(before.items() ^ after.items())]
            tally.cases += 1
            tally.faults += [f"{kind}, {text[:60]!r}: {fault}" for fault in dict.fromkeys(found)]
            shutil.rmtree(sandbox)
    return tally


@contextlib.contextmanager
def _apart(root: Path) -> Iterator[Path]:
    """Work below ``root``, with a cache there and no threads left behind; yield it resolved."""
    here, cache, root = Path.cwd(), os.environ.get("DDPSCHED_CACHE"), root.resolve()
    os.environ["DDPSCHED_CACHE"] = str(root / "templates" / "cache")
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield root
    finally:
        os.chdir(here)
        os.environ.pop("DDPSCHED_CACHE")
        if cache is not None:
            os.environ["DDPSCHED_CACHE"] = cache


def _harmless_page(templates: fields.Templates) -> str:
    study = load_study(templates.study)
    return page(fields.report_of(Results({study.path.name: study})), {})


def _case(
    kind: str, random: Random, text: str, sandbox: Path, templates: fields.Templates, draws: bool
) -> Iterator[str]:
    """Run one case; yield what is wrong with what it printed."""
    os.chdir(sandbox)
    out = io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
        warnings.catch_warnings(),
        patch.object(logging.getLogger("ddpsched"), "propagate", False),
    ):
        warnings.simplefilter("ignore")  # glyphs that a font lacks
        try:
            if kind == "config":
                fields.config_case(random, text, sandbox, draws)
            elif kind == "data":
                fields.data_case(random, text, sandbox, templates.tokenizer)
            elif kind == "run":
                fields.run_case(random, text, sandbox, templates.study, draws)
            elif kind == "lengths":
                fields.length_case(random, text, sandbox, draws)
            elif kind == "calibration":
                fields.calibration_case(random, text, sandbox, draws)
            else:
                fields.order_case(random, text, sandbox, templates.tokenizer)
        except (Exception, SystemExit) as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            yield f"traceback: {type(error).__name__}: {str(error)[:200]} ({place.filename}:{place.lineno})"
    yield from look.text_faults("the terminal", out.getvalue())


def _looked_at(sandbox: Path, links: set[str], tally: Tally) -> Iterator[str]:
    """Yield the faults of the pages, tables and logs that a case left."""
    for path in sandbox.rglob("*.log"):
        yield from look.text_faults(path.name, path.read_text(encoding="utf-8", errors="surrogateescape"))
    for path in sandbox.rglob("tables.csv"):
        yield from look.table_faults(path)
    for path in sandbox.rglob("report.html"):
        tally.pages += 1
        yield from look.page_faults(path.read_text(encoding="utf-8"), links)


@app.command()
def main(
    count: Annotated[int, typer.Option(min=1, help="texts, each in one field")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="of the texts and fields")] = 0,
    show: Annotated[int, typer.Option(min=0, help="faults to print")] = 20,
    freeze: Freeze = False,
) -> None:
    """Put hostile texts into fields, and count what becomes of them."""
    tally = checked(count, seed)
    for fault in tally.faults[:show]:
        print(ascii(fault))
    kinds = Counter(
        "escape" if "outside: " in fault else "node" if "active node" in fault else "other" for fault in tally.faults
    )
    finding = Finding(
        "hostile_texts",
        "Hostile texts in every field",
        "0 active nodes, 0 path escapes, nothing raw printed, no traceback",
        f"{tally.cases} texts, {tally.pages} pages: {kinds['node']} active nodes, {kinds['escape']} path escapes, "
        f"{kinds['other']} other faults",
        not tally.faults,
        f"python -m experiments.reliability.hostile_texts --count {count} --seed {seed}",
    )
    raise typer.Exit(report(finding, freeze))


if __name__ == "__main__":
    app()
