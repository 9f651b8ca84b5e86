"""A PDF from the report's Markdown, by typst; the same text and figures give the same bytes on every machine.

It has typst's own fonts, in which there are Latin, Greek and mathematical letters: others show as empty boxes.
"""

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ddpsched.errors import DataError, DdpschedError
from report.reading import title, tokens
from report.typst_markup import Markup, literal

PAPER = Path(__file__).parent / "paper.typ"


class TypstMissing(DdpschedError):
    """The package that makes PDFs is not installed."""


def pdf(text: str, figures: Mapping[str, bytes]) -> bytes:
    """Return the Markdown as a PDF that contains the figures. ``figures``: PNGs by file name.

    Raises TypstMissing without typst, DataError where a figure is none.
    """
    try:
        import typst
    except ImportError:
        raise TypstMissing('typst is missing, which makes the PDF; install it: pip install -e ".[report]"') from None
    with tempfile.TemporaryDirectory(prefix="ddpsched-pdf-") as name:
        folder = Path(name)
        try:
            # a root, and packages, where nothing else is
            made = typst.compile(
                write_source(text, figures, folder),
                root=folder,
                ignore_system_fonts=True,
                timestamp=0,
                package_path=folder,
                package_cache_path=folder,
            )
        except typst.TypstError as error:
            raise DataError(f"no PDF can be made: {error.message}; draw the figures anew") from error
    assert isinstance(made, bytes)
    return made


def write_source(text: str, figures: Mapping[str, bytes], folder: Path) -> Path:
    """Write what typst reads into a folder; return the path of its main file."""
    files = {name: f"{number}.png" for number, name in enumerate(figures)}
    for name, file in files.items():
        (folder / file).write_bytes(figures[name])
    (folder / PAPER.name).write_bytes(PAPER.read_bytes())
    read = tokens(text)
    body = Markup(files).document(read)
    main = folder / "main.typ"
    main.write_text(f'#import "{PAPER.name}": *\n#show: paper.with({literal(title(read))})\n\n{body}\n', "utf-8")
    return main


def num_pages(content: bytes) -> int:
    """Return the number of pages of a PDF that ``pdf`` has made. Raises DataError for other bytes."""
    counts = [int(count) for count in re.findall(rb"/Type\s*/Pages\b[^>]*?/Count\s+(\d+)", content)]
    if not counts:
        raise DataError(f"{len(content)} bytes with no page; give what report.pdf.pdf returned")
    return max(counts)
