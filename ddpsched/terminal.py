"""A console that prints text as it is written, in tables too."""

import shutil
from typing import Any

from rich.console import Console
from rich.text import Text

from ddpsched.visible_text import visible


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


def is_live(console: Console) -> bool:
    """Return whether what is printed can be drawn anew in place."""
    return console.is_terminal and not console.is_dumb_terminal
