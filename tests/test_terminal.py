"""Text is printed as written: brackets, backslashes and colons are never markup."""

import ast
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.table import Table
from typer.testing import CliRunner

from analysis import terminal
from ddpsched.certify.certificate import Certificate, Check
from ddpsched.cli import app
from ddpsched.command_exit import guarded
from ddpsched.compare.arms import Row
from ddpsched.compare.show import table
from ddpsched.planning.yardstick import Yardstick
from ddpsched.terminal import plain_console
from experiments import sweep
from report import reproduce

ROOT = Path(__file__).parents[1]
WORDS = ("[base]", "[/]", "[red]", "[/red]", r"\[x]", r"[y]\[z]", "[link=a]", "[]", "a\\", ":warning:", "[95 % of]")
TEXT = " ".join(WORDS)
COMMANDS = {
    **{name: (app, [name]) for name in ("run", "fit", "plan", "calibrate", "certify", "doctor", "sort")},
    "ddpsched": (app, []),
    "sweep": (sweep.app, []),
}


def assert_whole(printed: str) -> None:
    """Check that each word is printed, unwrapped."""
    for word in WORDS:
        assert word in printed, f"{word} of {TEXT} is missing in\n{printed}"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_every_bracketed_word_of_the_source(name: str) -> None:
    cli, words = COMMANDS[name]
    click: Any = typer.main.get_command(cli)
    for word in words:
        click = click.commands[word]
    texts = [click.help or "", *(getattr(each, "help", None) or "" for each in click.params)]
    printed = CliRunner().invoke(cli, [*words, "--help"], env={"COLUMNS": "400"}).output
    for text in texts:
        for word in re.findall(r"\[[^\]\s]*\]", text):
            assert word in printed, f"{word} of {text!r} is missing in\n{printed}"
    assert "Show this message and exit." in printed


def test_help_of_a_sweep_names_its_tables() -> None:
    assert "TOML file with [base] and [grid]" in CliRunner().invoke(sweep.app, ["--help"]).output


def test_a_console_prints_text_as_it_is_written() -> None:
    out = plain_console(file=io.StringIO(), width=400)
    shown = Table(title=TEXT, caption=TEXT)
    shown.add_column(TEXT)
    shown.add_row(TEXT)
    for each in (TEXT, shown):
        out.print(each)
    printed = out.file.getvalue()  # type: ignore[attr-defined]
    assert printed.count(TEXT) == 5


def test_a_console_is_at_least_as_wide_as_asked() -> None:
    assert plain_console(file=io.StringIO(), width=40, at_least=130).width == 130
    assert plain_console(file=io.StringIO(), width=140, at_least=130).width == 140


def test_a_terminal_without_a_letter_shows_a_question_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", ascii_only)
    assert guarded(lambda: plain_console().print("0.69–0.73")) == 0
    ascii_only.seek(0)
    assert ascii_only.read() == "0.69?0.73\n"


def test_sweep_prints_reasons_folders_and_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, reason = tmp_path / "study.toml", TEXT
    study.write_text(f"[base]\noutputs = {json.dumps(str(tmp_path / '[red] here'))}\nsteps = 1\n[grid]\nseed = [0]\n")
    monkeypatch.setattr(sweep, "run_launch", lambda launch, force: [(run, reason) for run in launch.runs])
    printed = CliRunner().invoke(sweep.app, [str(study)]).output
    assert_whole(printed.partition("failed ")[2])
    assert printed.count("[red] here") == 4
    study.write_text("[base]\n[grids]\nseed = [0]\n")
    assert "tables are [base], [compare], [grid] and [[also]]" in CliRunner().invoke(sweep.app, [str(study)]).output


def test_certificates() -> None:
    bad = Check(TEXT, False, TEXT, cause=TEXT)
    certificate = Certificate(TEXT, (bad,), facts=(TEXT,))
    lines = certificate.text(width=1000).splitlines()
    assert sum(line.count(TEXT) for line in lines) == 6  # subject, check twice, cause, fact, verdict
    assert "FAILS" in certificate.text()


def test_plan_tables() -> None:
    figures = Yardstick(1.0, 1.0, 1.0, 0.0, 0, 0, 1, 0.0, 1.0)
    out = plain_console(file=io.StringIO(), width=400)
    out.print(table([Row(arm=TEXT, figures=figures), Row(arm="other", figures=figures)], TEXT))
    assert out.file.getvalue().count(TEXT) == 2  # type: ignore[attr-defined]


def test_tables_of_analysis(capsys: pytest.CaptureFixture[str]) -> None:
    keys = (key for _, key, *_ in (*terminal.COLUMNS, *terminal.SIDE_BY_SIDE))
    arm = dict.fromkeys(keys) | {"arm": TEXT, "num_runs": 1, "verdict": TEXT}
    ratio = {"arm": TEXT, "baseline": TEXT, "column": "step_s", "ratio": 0.7, "low": 0.6, "high": 0.8, "verdict": TEXT}
    ratio |= {"p95_ratio": 0.7, "num_steps": 9, "num_launches": 3, "rho": 0.0, "effective_steps": 9.0}
    tables = {"label": TEXT, "arms": [arm], "ratios": [ratio], "baseline": TEXT}
    out = terminal.console()
    out.width = 1000
    out.print(terminal.comparison(tables))
    out.print(terminal.side_by_side(tables))
    printed = capsys.readouterr().out
    assert printed.count(TEXT) == 5
    out.print(terminal.verdicts(tables))
    printed = capsys.readouterr().out
    assert printed.count(TEXT) == 3
    assert "0.700 (0.600–0.800)" in printed


def test_conclusions_of_a_reproduction() -> None:
    row = {"setting": TEXT, "statement": TEXT, "threshold": 1.0, "holds": True, "old": None, "new": {"value": 1.0}}
    out = plain_console(file=io.StringIO(), width=400)
    reproduce.show([{**row, "outcome": reproduce.SAME}, {**row, "outcome": reproduce.NEW}], out)
    printed = out.file.getvalue()  # type: ignore[attr-defined]
    assert printed.count(TEXT) == 3
    assert reproduce.SAME in printed


def markup(tree: ast.AST) -> Sequence[str]:
    """Return the places where a file lets rich or typer read text as markup."""
    uses = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in ("rich", "rich.markup"):
            uses += [
                f"from {node.module} import {each.name}" for each in node.names if each.name in ("print", "escape")
            ]
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func).rpartition(".")[2]
        given = {each.arg: ast.unparse(each.value) for each in node.keywords}
        wrong = {
            "Console": given.get("markup") != "False" or given.get("emoji") != "False",
            "Typer": given.get("rich_markup_mode") != "None",
            "TextColumn": given.get("markup") != "False",
            "from_markup": True,
        }
        plain = ast.unparse(node.func) == "typer.run"  # it makes another Typer, which reads markup
        if wrong.get(name) or plain or given.get("markup") == "True":
            uses.append(ast.unparse(node))
    return uses


def test_no_file_reads_text_as_markup() -> None:
    for folder in ("ddpsched", "experiments", "analysis", "report"):
        for path in (ROOT / folder).rglob("*.py"):
            uses = markup(ast.parse(path.read_text(encoding="utf-8")))
            assert not uses, f"{path.relative_to(ROOT)}: print by ddpsched.terminal.plain_console, not {uses}"


def test_the_search_for_markup_can_fail() -> None:
    for code in (
        "Console()", "rich.console.Console(markup=False)", "typer.Typer()", "typer.run(main)", "Text.from_markup(x)",
        "TextColumn('x')", "out.print(x, markup=True)", "from rich import print", "from rich.markup import escape",
    ):  # fmt: skip
        assert markup(ast.parse(code)), code
    assert not markup(ast.parse("Console(markup=False, emoji=False)\nout.print(x)\nfrom rich.table import Table"))
