"""The report's Markdown as tokens, which become HTML in html.py and a PDF in pdf.py."""

import re
from collections.abc import Sequence
from itertools import pairwise

try:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token
except ImportError as error:
    raise ImportError(f'{error.name} is missing; install what builds the report: pip install -e ".[report]"') from None

PARAGRAPH = ("paragraph_open", "inline", "paragraph_close")


def tokens(text: str) -> list[Token]:
    """Return the tokens: headings have ids, and a picture with its caption is a ``figure``."""
    reader = MarkdownIt("commonmark", {"html": True}).enable("table")
    return _with_figures(_with_ids(reader.parse(text)))


def title(read: Sequence[Token]) -> str:
    """Return the words of the first heading, or "Report" where there is none."""
    return next((words(inline) for opening, inline in pairwise(read) if opening.type == "heading_open"), "Report")


def words(inline: Token) -> str:
    """Return an inline token's text without its markup."""
    shown = {"softbreak": " ", "hardbreak": " "}
    return "".join(
        shown.get(each.type, each.content)
        for each in inline.children or ()
        if each.type not in ("html_inline", "image")
    )


def _with_ids(read: list[Token]) -> list[Token]:
    """Give headings the ids that GitHub gives them, for links within the page."""
    seen: dict[str, int] = {}
    for opening, inline in pairwise(read):
        if opening.type == "heading_open":
            slug = re.sub(r"[^\w\- ]", "", words(inline).lower()).replace(" ", "-")
            seen[slug] = seen.get(slug, -1) + 1
            opening.attrs["id"] = f"{slug}-{seen[slug]}" if seen[slug] else slug
    return read


def _with_figures(read: list[Token]) -> list[Token]:
    """Return the tokens with ``figure`` and ``figcaption`` around a picture and the caption below it."""
    made: list[Token] = []
    at = 0
    while at < len(read):
        if not _is_paragraph(read, at) or not _is_picture(read[at + 1]):
            made.append(read[at])
            at += 1
            continue
        made += [Token("figure_open", "figure", 1, block=True), read[at + 1]]
        at += 3
        if _is_paragraph(read, at) and _is_caption(read[at + 1]):
            inline = read[at + 1]
            inline.children = (inline.children or [])[1:-1]
            made += [Token("figcaption_open", "figcaption", 1, block=True), inline]
            made.append(Token("figcaption_close", "figcaption", -1, block=True))
            at += 3
        made.append(Token("figure_close", "figure", -1, block=True))
    return made


def _is_paragraph(read: Sequence[Token], at: int) -> bool:
    return tuple(token.type for token in read[at : at + 3]) == PARAGRAPH


def _is_picture(inline: Token) -> bool:
    return [child.type for child in inline.children or ()] == ["image"]


def _is_caption(inline: Token) -> bool:
    """Return whether the text is one emphasis that begins with "Figure" and its number."""
    children = inline.children or []
    return (
        re.match(r"\*Figure \d+\. ", inline.content) is not None
        and children[0].type == "em_open"
        and children[-1].type == "em_close"
        and all(child.level for child in children[1:-1])
    )
