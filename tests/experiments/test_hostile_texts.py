"""Hostile texts reach no page, terminal, table or path; and the check notices where one does."""

import html
from pathlib import Path
from random import Random
from typing import Any

import pytest

from analysis import tables
from ddpsched import errors, terminal
from experiments.reliability.checks import CHECKS
from experiments.reliability.hostile_texts import __main__ as check
from experiments.reliability.hostile_texts import look
from experiments.reliability.hostile_texts.texts import KINDS, hostile_text
from report import render


def test_a_few() -> None:
    tally = check.checked(12, 3)
    assert not tally.faults, tally.faults
    assert tally.cases == 12


@pytest.mark.slow
def test_many() -> None:
    tally = check.checked(200, 5)
    assert not tally.faults, tally.faults
    assert tally.pages > 20


def drawn(monkeypatch: pytest.MonkeyPatch, kind: str, texts: str, count: int, seed: int = 0) -> list[str]:
    """Return the faults of cases of one kind with texts of one kind."""
    monkeypatch.setattr(check, "CASES", (kind,))
    monkeypatch.setattr(check, "hostile_text", lambda random: random.choice(KINDS[texts]))
    return check.checked(count, seed).faults


def unescaped(value: Any) -> Any:
    return render.Markup(value) if isinstance(value, str) else value


def test_a_page_that_is_not_escaped_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "as_text", unescaped)
    assert any("active node" in fault for fault in drawn(monkeypatch, "run", "handler", 2, seed=2))


def test_a_page_without_a_policy_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "POLICY", "default-src 'self'")
    assert any("without a content policy" in fault for fault in drawn(monkeypatch, "run", "rich", 4))


def test_cells_that_are_formulas_are_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    table = {"slug": "s", "runs": [{"run": "=1+1", "arm": "-2+3", "seed": -1}]}
    tables.write(tmp_path, [table], {})
    assert not list(look.table_faults(tmp_path / "tables.csv"))
    monkeypatch.setattr(tables, "csv_cell", lambda value: value)
    tables.write(tmp_path, [table], {})
    assert len(list(look.table_faults(tmp_path / "tables.csv"))) == 2


def test_escape_sequences_on_the_terminal_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "visible", lambda text, lines: text)
    monkeypatch.setattr(errors, "visible", lambda text, lines: text)
    assert any("the terminal has a raw" in fault for fault in drawn(monkeypatch, "run", "bidi", 2))


def test_what_is_found() -> None:
    links = {"https://a.org"}
    good = f'<meta http-equiv="Content-Security-Policy" content="{look.POLICY}">'
    for fault in (
        "<script>x</script>", "<img src=http://x>", "<p onclick=x>", "<a href='javascript:x'>", "<iframe>", "<svg>",
        "<meta http-equiv=refresh content=0>", "<p style=x>", "<a href='https://b.org'>",
    ):  # fmt: skip
        assert list(look.page_faults(good + fault, links)), fault
        assert not list(look.page_faults(good + html.escape(fault), links))
    assert not list(look.page_faults(good + '<a href="https://a.org">x</a><img src="data:image/png;base64,AA">', links))
    assert not list(look.page_faults(good + look.SORTING, links))
    assert list(look.page_faults(good + 2 * look.SORTING, links)) == ["active node <script>"]
    assert list(look.page_faults("<p>", links)) == ["page without a content policy"]
    assert list(look.text_faults("log", "a\x1b[1m"))
    assert list(look.text_faults("log", "Traceback (most recent call last):\nValueError: x"))
    assert not list(look.text_faults("log", "naïve 日本\tx\n"))


def test_files_outside_are_noticed(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "kept").write_text("a")
    before = look.snapshot(tmp_path, inside)
    (inside / "x").write_text("b")
    assert look.snapshot(tmp_path, inside) == before
    (tmp_path / "kept").write_text("b")
    assert look.snapshot(tmp_path, inside) != before


def test_a_file_that_is_written_outside_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def escape(*_: Any) -> None:
        Path("../escaped").write_text("")

    monkeypatch.setattr(check.fields, "length_case", escape)
    faults = drawn(monkeypatch, "lengths", "path", 1)
    assert len(faults) == 1
    assert "outside: " in faults[0]


def test_texts_of_every_kind_are_drawn() -> None:
    random = Random(0)
    texts = [hostile_text(random) for _ in range(2000)]
    for kind, examples in KINDS.items():
        assert any(example in text for text in texts for example in examples), kind


def test_it_is_listed() -> None:
    assert CHECKS["hostile_texts"] == "hostile_texts --count 200"
