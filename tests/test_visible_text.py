"""Foreign text on its way out: no control, bidi or zero-width character, no formula, no markup."""

import io
import logging
import unicodedata
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.table import Table

from ddpsched.errors import DataError, SolverTimeout
from ddpsched.guard import LineFormatter
from ddpsched.run_folder import RunFolder, read_status
from ddpsched.terminal import plain_console
from ddpsched.visible_text import csv_cell, figure_label, visible

HOSTILE = "a\x1b[31mb\x1b]8;;http://x\x07c\u202ed\u2066e\u200bf\ufeffg\x9bh\x7fi\rj\ud800k\u2028l\U000e0041m"
HIDDEN = set(HOSTILE) - set("abcdefghijklm[]31;/:htpx8")
ORDINARY = "naïve Straße 日本語 العربية עברית हिन्दी می\u200cخواهم 👩‍🔬 👍🏽 e\u0301 “x” – \\ {a} ½"


def test_no_hidden_character_is_left() -> None:
    shown = visible(HOSTILE)
    assert not set(shown) & HIDDEN
    assert r"\x1b[31mb" in shown
    assert r"\u202ed" in shown
    assert r"\U000e0041m" in shown
    assert shown.encode() == shown.encode("ascii")


def test_every_control_character_is_escaped() -> None:
    for code in [*range(0x20), *range(0x7F, 0xA0), 0x200B, 0x200C, 0x200D, 0x200E, 0x200F, *range(0x202A, 0x202F)]:
        assert visible(f"a{chr(code)}b").isprintable(), hex(code)
    joiners = [code for code in range(0x110000) if unicodedata.bidirectional(chr(code)) in BIDI]
    assert len(joiners) == 9
    assert all(visible(chr(code)).isascii() for code in joiners)


BIDI = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")


def test_ordinary_text_stays_what_it_is() -> None:
    assert visible(ORDINARY) == ORDINARY
    assert visible("two\nlines", lines=True) == "two\nlines"
    assert visible("two\nlines") == r"two\nlines"


def test_a_second_time_changes_nothing() -> None:
    assert visible(visible(HOSTILE)) == visible(HOSTILE)
    assert csv_cell(csv_cell("=1")) == csv_cell("=1")


def test_a_long_text_is_cut_and_its_length_named() -> None:
    assert visible("x" * 10**6, most=5) == "xxxxx... (1,000,000 characters)"
    assert visible("xxxxx", most=5) == "xxxxx"


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_no_cell_begins_as_a_formula(text: str) -> None:
    assert csv_cell(text).startswith("'")


def test_numbers_in_a_table_stay_numbers() -> None:
    assert [csv_cell(value) for value in (-1, -1.5, None, True)] == [-1, -1.5, None, True]


@pytest.mark.parametrize("text", ["$x_{$", "a $ b $ c", r"\$x$", "$\\frac{1}{$", "_hidden", "$" * 7])
def test_figures_draw_labels_literally(text: str) -> None:
    figure = Figure()
    ax = figure.subplots()
    ax.plot([1], [1], label=figure_label(text))
    ax.set_title(figure_label(text))
    figure.legend()
    FigureCanvasAgg(figure).draw()
    assert len(ax.get_legend_handles_labels()[1]) == 1
    title = ax.title
    assert title._preprocess_math(title.get_text()) == (text if text[0] != "_" else f" {text}", False)  # type: ignore[attr-defined]


def test_messages_of_errors_are_visible() -> None:
    for kind in (DataError, SolverTimeout):
        assert str(kind(f"file {HOSTILE}\nremedy")) == f"file {visible(HOSTILE)}\nremedy"


def test_a_console_prints_no_escape_sequence() -> None:
    out = plain_console(file=io.StringIO(), width=400)
    table = Table(title=HOSTILE, caption=HOSTILE)
    table.add_column(HOSTILE)
    table.add_row(HOSTILE)
    out.print(table)
    out.print(HOSTILE, soft_wrap=True)
    printed = out.file.getvalue()  # type: ignore[attr-defined]
    assert not set(printed) & HIDDEN
    assert printed.count(r"\x1b[31m") == 5


def test_a_log_line_cannot_be_forged() -> None:
    record = logging.LogRecord(
        "ddpsched", logging.INFO, __file__, 1, "left out: %s", ("x\n12:00:00 done\x1b[1A",), None
    )
    shown = LineFormatter("%(asctime)s %(message)s", "%H:%M:%S").format(record)
    assert shown.splitlines()[1:] == ["    12:00:00 done\\x1b[1A"]


def test_a_reason_is_visible_and_not_endless(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run", "", overwrite=False)
    with folder.held(is_main=True):
        folder.begin({})
        folder.failed(HOSTILE + "x" * 10**6)
    reason = read_status(tmp_path / "run")["reason"]
    assert not set(reason) & HIDDEN
    assert len(reason) < 30_000
    assert reason.endswith(" characters)")
