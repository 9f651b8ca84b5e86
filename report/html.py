"""One self-contained HTML page from Markdown; the same text and figures give the same bytes."""

import base64
import hashlib
from collections.abc import Mapping, MutableMapping, Sequence
from html import escape
from pathlib import Path, PurePosixPath
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import OptionsDict

from report.reading import title, tokens

# as they stand between their tags, of which hashes are taken
STYLE, SCRIPT = ("\n" + (Path(__file__).parent / name).read_text(encoding="utf-8") for name in ("style.css", "sort.js"))


def page(text: str, figures: Mapping[str, bytes]) -> str:
    """Return the Markdown as one HTML page that contains the figures. ``figures``: PNGs by file name."""
    read = tokens(text)
    writer = MarkdownIt("commonmark", renderer_cls=Page)
    body = writer.renderer.render(read, writer.options, {"figures": figures})
    policy = (
        f"default-src 'none'; img-src data:; style-src {_allowed(STYLE)}; script-src {_allowed(SCRIPT)}; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title(read))}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n"
        f"<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def _allowed(content: str) -> str:
    """Return the source of a policy that allows this content alone."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode('ascii')}'"


class Page(RendererHTML):
    """Markdown's HTML, with tables in boxes that scroll and pictures inside the page."""

    def table_open(self, *_: Any) -> str:
        """Return the box of a table and its tag."""
        return '<div class="scroll"><table>\n'

    def table_close(self, *_: Any) -> str:
        """Return the ends of both."""
        return "</table></div>\n"

    def th_open(self, tokens: Sequence[Token], idx: int, *_: Any) -> str:
        """Return a cell's tag with its alignment as a class, as the page allows no style but its own."""
        side = str(tokens[idx].attrs.get("style", "")).removeprefix("text-align:")
        return f'<{tokens[idx].tag} class="{side}">' if side else f"<{tokens[idx].tag}>"

    td_open = th_open

    def image(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: MutableMapping[str, Any]) -> str:
        """Return a picture as a data URI, or its words where there is no such picture."""
        token = tokens[idx]
        words = escape(self.renderInlineAsText(token.children, options, env))
        content = env["figures"].get(PurePosixPath(str(token.attrs["src"])).name)
        if content is None:
            return f"<em>{words}</em>"
        data = base64.b64encode(content).decode("ascii")
        return f'<img src="data:image/png;base64,{data}" alt="{words}">'
