"""Markdown's tokens as typst markup, in which every text is a string literal: no text can become code.

A literal ``#"..."`` has two special characters, the quote and the backslash. All that stands outside of literals is
written here, or in paper.typ.
"""

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from pathlib import PurePosixPath

from markdown_it.token import Token
from markdown_it.tree import SyntaxTreeNode

from ddpsched.visible_text import visible

TAGS = {"sub": "sub", "sup": "super", "em": "emph", "i": "emph", "strong": "strong", "b": "strong"}
LONGEST_IN_LINES, LONGEST_IN_CELLS = 48, 24  # characters of a word that is not broken
MEASURED = 3  # of the longest words of a column
BREAK = "\u200b"  # where a line may end within a word


def literal(text: str, longest: int | None = None) -> str:
    r"""Return a text as a string of typst's, which may break after every ``longest`` characters of a word.

    >>> print(literal('#read("x") $a$ \\'))
    "#read(\"x\") $a$ \\"
    """
    shown = broken(visible(text, lines=True), longest)
    return '"' + shown.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def broken(text: str, longest: int | None) -> str:
    """Return the text with breaks in words over ``longest`` characters: where a sign parts them, else anywhere.

    >>> broken("a-word_of-signs and-another", 8).split(BREAK)
    ['a-word_', 'of-signs and-', 'another']
    """
    if longest is None:
        return text
    word, signs = r"[^ \n]", "[-_/.,:;=]"
    part = rf"{word}{{3,{longest - 1}}}{signs}|{word}{{{longest}}}"
    return re.sub(rf"(?={word}{{{longest + 1}}})(?:{part})", rf"\g<0>{BREAK}", text)


def array(items: Iterable[str]) -> str:
    """Return an array of typst's."""
    return f"({''.join(f'{item}, ' for item in items)})"


@dataclass(frozen=True)
class Markup:
    """Markup of a document.

    Attributes:
        files: the paths of pictures as typst finds them, by the names of their files in the Markdown.
        longest: characters of a word that is not broken.
    """

    files: Mapping[str, str]
    longest: int = LONGEST_IN_LINES

    def document(self, read: Sequence[Token]) -> str:
        """Return the markup of all blocks."""
        return self._blocks(SyntaxTreeNode(read).children)

    def _blocks(self, nodes: Sequence[SyntaxTreeNode]) -> str:
        blocks = []
        for node, following in zip_longest(nodes, nodes[1:]):
            block = self._block(node)
            introduces = node.type == "paragraph" and following is not None and following.type == "table"
            blocks.append(f"#lead[{block}]" if introduces else block)
        return "\n\n".join(filter(None, blocks))

    def _block(self, node: SyntaxTreeNode) -> str:
        inner = node.children
        match node.type:
            case "paragraph":
                return self._line(inner[0])
            case "heading":
                return f"#heading(level: {node.tag[1:]})[{self._line(inner[0])}]"
            case "bullet_list":
                return f"#list({self._items(node)})"
            case "ordered_list":
                return f"#enum(start: {int(node.attrs.get('start', 1))}, {self._items(node)})"
            case "blockquote":
                return f"#quote(block: true)[{self._blocks(inner)}]"
            case "fence" | "code_block":
                return f"#raw({literal(node.content.rstrip(), self.longest)}, block: true)"
            case "table":
                return self._table(node)
            case "figure":
                return self._figure(inner[0].children[0], inner[1:])
            case "hr":
                return "#line(length: 100%, stroke: 0.4pt)"
            case "html_block":
                return self._html_block(node.content)
        raise ValueError(f"{node.type}: no such block can be put on a page; leave it out of the report's Markdown")

    def _items(self, node: SyntaxTreeNode) -> str:
        tight = all(child.hidden for item in node.children for child in item.children if child.type == "paragraph")
        items = "".join(f", [{self._blocks(item.children)}]" for item in node.children)
        return f"tight: {str(tight).lower()}{items}"

    def _line(self, inline: SyntaxTreeNode) -> str:
        return self._inlines(inline.children)

    def _inlines(self, nodes: Sequence[SyntaxTreeNode]) -> str:
        opened: list[str] = []
        shown = "".join(
            self._html(node.content, opened) if node.type == "html_inline" else self._inline(node) for node in nodes
        )
        return shown + "];" * len(opened)

    def _inline(self, node: SyntaxTreeNode) -> str:
        match node.type:
            case "text":
                return self._text(node.content)
            case "softbreak":
                return self._text(" ")
            case "hardbreak":
                return "#linebreak();"
            case "code_inline":
                return f"#raw({literal(node.content, self.longest)});"
            case "em":
                return f"#emph[{self._inlines(node.children)}];"
            case "strong":
                return f"#strong[{self._inlines(node.children)}];"
            case "image":
                return self._figure(node, [])
            case "link":
                inner, address = self._inlines(node.children), str(node.attrs["href"])
                # other files of the repository are not there beside a PDF that was sent on
                return f"#link({literal(address)})[{inner}];" if re.match("https?://", address) else inner
        raise ValueError(f"{node.type}: nothing such can stand in a line; leave it out of the report's Markdown")

    def _text(self, text: str) -> str:
        shown = re.sub("[ \t\n]+", " ", text)
        return f"#{literal(shown, self.longest)};"

    def _html(self, content: str, opened: list[str]) -> str:
        """Return the markup of HTML: of the tags, those of TAGS and <br>. ``opened``: the tags to be closed yet."""
        parts = []
        for part in re.split(r"(<!--.*?-->|</?\w[^>]*>)", content, flags=re.DOTALL):
            tag = re.match(r"<(/?)(\w+)|<!--", part)
            if tag is None:
                parts.append(self._text(html.unescape(part)) if part.strip(" \n") else "")
            elif tag[2] == "br":
                parts.append("#linebreak();")
            elif tag[2] in TAGS and not tag[1]:
                opened.append(tag[2])
                parts.append(f"#{TAGS[tag[2]]}[")
            elif opened and tag[2] == opened[-1]:
                opened.pop()
                parts.append("];")
        return "".join(parts)

    def _html_block(self, content: str) -> str:
        opened: list[str] = []
        inner = self._html(content, opened) + "];" * len(opened)
        return f"#formula[{inner}]" if content.startswith('<div class="formula">') else inner

    def _figure(self, image: SyntaxTreeNode, captions: Sequence[SyntaxTreeNode]) -> str:
        """Return a picture, or its words where there is none."""
        file = self.files.get(PurePosixPath(str(image.attrs["src"])).name)
        caption = f"[{self._line(captions[0].children[0])}]" if captions else "none"
        if file is None:
            return f"#emph[{self._text(image.content)}];" + (f"\n\n#text(8.5pt){caption}" if captions else "")
        return f"#picture({literal(file)}, {literal(image.content)}, {caption});"

    def _table(self, node: SyntaxTreeNode) -> str:
        cells = replace(self, longest=LONGEST_IN_CELLS)
        head, *rows = [row.children for part in node.children for row in part.children]
        sides = [str(cell.attrs.get("style", "text-align:left")).removeprefix("text-align:") for cell in head]
        columns = zip(*rows, strict=True) if rows else [()] * len(head)
        measured = [
            array(_longest([heading], "strong") + _longest(column))
            for heading, column in zip(head, columns, strict=True)
        ]
        bodies = [array(f"[{cells._line(cell.children[0])}]" for cell in part) for part in (head, chain(*rows))]
        return f"#sheet({array(sides)}, {array(measured)},\n  {bodies[0]},\n  {bodies[1]},\n)"


def _longest(cells: Iterable[SyntaxTreeNode], style: str = "") -> list[str]:
    """Return the longest words of cells, in a style of typst's, and the longest of code."""
    found: dict[str, set[str]] = {style: set(), "raw": set()}
    for cell in cells:
        inline = cell.children[0]
        text = broken("".join(map(_words, inline.children)), LONGEST_IN_CELLS)
        kind = "raw" if any(child.type == "code_inline" for child in inline.children) else style
        found[kind] |= set(re.split(f"[ {BREAK}]", text))
    return [
        f"{kind}({literal(word)})"
        for kind, texts in found.items()
        for word in sorted(texts, key=lambda word: (-len(word), word))[:MEASURED]
    ]


def _words(node: SyntaxTreeNode) -> str:
    """Return the text of what stands in a line."""
    return "".join(map(_words, node.children)) if node.children else " " if node.type == "softbreak" else node.content
