"""Tables of the analysis on a terminal that is narrower than their columns."""

import io

from rich.table import Table

from ddpsched.terminal import fitting, plain_console


def drawn(width: int) -> list[str]:
    table = Table(title="of launches")
    table.add_column("\narm")
    table.add_column("imba-\nlance\nms", no_wrap=True)
    table.add_column("verdict on\nthe step time", min_width=14)
    table.add_column("pairs (launches)", no_wrap=True)
    table.add_row("balanced", "0.712\n(0.690–0.734)", "not told apart from A/A", "300 (5)")
    out = plain_console(width=width, file=io.StringIO())
    out.print(fitting(table, out))
    return [line.rstrip() for line in out.file.getvalue().splitlines()]


def test_a_narrow_terminal_has_a_line_for_each_cell() -> None:
    lines = drawn(50)
    assert max(map(len, lines)) <= 50
    cells = {line.split("  ")[0].strip(): line.split("  ")[-1].strip() for line in lines if "  " in line}
    assert cells["arm"] == "balanced"
    assert cells["imbalance ms"] == "0.712 (0.690–0.734)", "headings and cells are joined again"
    assert cells["verdict on the step"] == "not told apart from"


def test_a_wide_terminal_has_the_table() -> None:
    assert any("balanced" in line and "0.712" in line for line in drawn(100))
