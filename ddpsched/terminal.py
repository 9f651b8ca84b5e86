"""A console that prints text as it is written, in tables too."""

import shutil
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from ddpsched.visible_text import visible

WIDEST = 1000  # columns, as many as any table needs


class VisibleConsole(Console):
    """A rich console that shows control, bidi and zero-width characters as escapes, in tables too."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text as rich prints it."""
        return super().render_str(visible(text, lines=True), **options)

    def show_cursor(self, show: bool = True) -> bool:
        """Leave the cursor as it is: a process that is killed would leave the terminal without one."""
        return False


def plain_console(*, at_least: int = 0, **options: Any) -> Console:
    """Return a rich console that reads no markup and no escape sequence.

    Names of arms, files and columns, and the texts of errors, may hold ``[words]`` or ``:words:``, which rich would
    take for styles and emoji and leave out. Colour is given as ``style``, or by a ``rich.text.Text``.
    ``at_least``: columns, also where the terminal, or a log, has fewer. ``options``: of rich's ``Console``.
    """
    console = VisibleConsole(markup=False, emoji=False, highlight=False, **options)
    if console.width < at_least:
        console.width = at_least
    return console


def sized_console() -> Console:
    """Return a console as large as the terminal, one without colour or cursor too; in a pipe of 100 columns."""
    columns, lines = shutil.get_terminal_size((100, 24))
    return plain_console(width=columns, height=lines)


def fitting(table: Table, out: Console) -> Table:
    """Return the table, or, where the terminal is too narrow for its columns, its rows as lines of heading and cell."""
    needed = Measurement.get(out, out.options.update(max_width=WIDEST), table).minimum
    if needed <= out.width:
        return table
    found = Table(title=table.title, title_justify="left", box=SIMPLE_HEAD, show_header=False, pad_edge=False)
    found.caption, found.caption_justify = table.caption, "left"
    headings = [str(column.header).replace("-\n", "").replace("\n", " ").strip() for column in table.columns]
    for row in zip(*(column.cells for column in table.columns), strict=True):
        for heading, cell in zip(headings, row, strict=True):
            found.add_row(heading, str(cell).replace("\n", " "))
        found.add_section()
    return found


def is_live(console: Console) -> bool:
    """Return whether what is printed can be drawn anew in place."""
    return console.is_terminal and not console.is_dumb_terminal
