"""Text that others wrote, made safe to show: on a terminal, in a log, in a table and in a figure.

Data sets, file names and configs may hold characters that move the cursor, recolour the terminal, turn the order of a
line around, or are not seen at all. Here each of them becomes the escape that Python writes for it.
"""

import re
from typing import Any

LONGEST_LABEL = 160  # characters of a label in a figure

# control characters, surrogates, line separators, and format characters that nothing is drawn for
_HIDDEN = (
    "\x00-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff"
    "\ufeff\uffa0\ufff0-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e007f"
)
# joiners belong to words and emoji beyond Latin script; between Latin letters they only hide
_JOINER = "(?<![\u0370-\U000e0fff])[\u200c\u200d]|[\u200c\u200d](?![\u0370-\U000e0fff])"
_LINE = re.compile(f"[{_HIDDEN}]|{_JOINER}")
_LINES = re.compile(f"(?!\n)[{_HIDDEN}]|{_JOINER}")
_FORMULA = re.compile(r"[=+\-@\t\r]")


def visible(text: str, most: int | None = None, *, lines: bool = False) -> str:
    r"""Return a text with control, bidi and zero-width characters as escapes; a second time changes nothing.

    ``most``: characters after which it is cut, with its length named. ``lines``: line ends stay what they are.

    >>> visible("a\x1b[31m b\u202e c\n"), visible("naïve 日本 👩‍🔬"), visible("a" * 1000, most=3)
    ('a\\x1b[31m b\\u202e c\\n', 'naïve 日本 👩‍🔬', 'aaa... (1,000 characters)')
    """
    length = len(text)
    shown = (_LINES if lines else _LINE).sub(_escape, text if most is None else text[:most])
    return shown if most is None or length <= most else f"{shown}... ({length:,} characters)"


def csv_cell(value: Any) -> Any:
    """Return a cell that no spreadsheet takes for a formula: text that may begin one has an apostrophe before it.

    >>> csv_cell("=1+1"), csv_cell("static"), csv_cell(-1.5)
    ("'=1+1", 'static', -1.5)
    """
    if not isinstance(value, str):
        return value
    return f"'{visible(value)}" if _FORMULA.match(value) else visible(value)


def figure_label(text: str) -> str:
    r"""Return a text as matplotlib draws it literally: dollar signs begin no formula, an underscore hides no label.

    >>> figure_label("$x_{$"), figure_label("_minmax")
    ('\\$x_{\\$', ' _minmax')
    """
    shown = visible(text, LONGEST_LABEL).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "surrogatepass").decode("ascii")
