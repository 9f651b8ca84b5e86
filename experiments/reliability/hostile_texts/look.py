"""Faults that hostile texts leave, once they were read and written."""

import csv
import re
from collections.abc import Iterator
from hashlib import blake2b
from html.parser import HTMLParser
from pathlib import Path

from report.html import SCRIPT

MADE = set(
    re.findall(
        r"\w+",
        "html head meta title style body main h1 h2 h3 p div table thead tbody tr th td strong em code a img ul ol li "
        "sub sup br hr span figure figcaption",
    )
)  # elements of the report's template
PLAIN = {"class", "alt", "lang", "charset", "title", "id"}
SORTING = f"<script>{SCRIPT}</script>"
# what moves the cursor, or the order of a line, or is not seen
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]")
FORMULA = re.compile(r"[=+\-@\t\r]")
POLICY = "default-src 'none'"


class ActiveNodes(HTMLParser):
    """A parser that collects whatever the template did not make, or a browser would act on."""

    def __init__(self, links: set[str]) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.has_policy, self._links = False, links

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Check an element and its attributes."""
        if tag not in MADE:
            self.faults.append(f"<{tag}>")
        values = {name: value or "" for name, value in attrs}
        kind = values.get("http-equiv", "").lower()
        if kind == "content-security-policy" and values.get("content", "").startswith(POLICY):
            self.has_policy = True
        elif kind:
            self.faults.append(f"<meta http-equiv={kind}>")
        for name, value in values.items():
            fits = {
                "href": value in self._links, "src": value.startswith("data:image/png;base64,"),
                "http-equiv": tag == "meta", "content": tag == "meta", "name": tag == "meta" and value == "viewport",
            }  # fmt: skip
            if name not in PLAIN and not fits.get(name, False):
                self.faults.append(f"<{tag} {name}={value[:60]!r}>")


def links_of(page: str) -> set[str]:
    """Return the links of a page of harmless texts, which are the template's."""
    return set(re.findall(r'href="([^"]*)"', page))


def page_faults(page: str, links: set[str]) -> Iterator[str]:
    """Yield the active nodes of a page, and that it has no content policy."""
    parser = ActiveNodes(links)
    parser.feed(page.replace(SORTING, "", 1))
    yield from (f"active node {fault}" for fault in parser.faults)
    if not parser.has_policy:
        yield "page without a content policy"


def text_faults(place: str, text: str) -> Iterator[str]:
    """Yield what must not reach a terminal or a log."""
    if (found := RAW.search(text)) is not None:
        yield f"{place} has a raw {found[0]!r}"
    if "Traceback (most recent call last)" in text:
        yield f"{place} has a traceback: {text.strip().splitlines()[-1][:200]}"


def table_faults(path: Path) -> Iterator[str]:
    """Yield cells of a CSV that a spreadsheet would take for a formula."""
    csv.field_size_limit(2**30)
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.reader(file):
            for cell in row:
                if FORMULA.match(cell) and not _is_number(cell):
                    yield f"{path.name} has the cell {cell[:60]!r}"


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def snapshot(folder: Path, inside: Path) -> dict[str, str]:
    """Return a digest of each file and folder of ``folder``, except for what is below ``inside``."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if inside not in path.parents:
            data = path.read_bytes() if path.is_file() else b""
            found[str(path)] = blake2b(data, digest_size=8).hexdigest()
    return found
