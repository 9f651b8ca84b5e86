"""Public functions of the package have docstrings that begin plainly and name parameters and errors."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import ddpsched
from ddpsched import errors

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "ddpsched"
FILES = sorted(PACKAGE.rglob("*.py"))
# a summary begins with a verb or a noun phrase
OPENINGS = {"Of", "What", "How", "Where", "Whose", "Why", "That", "Those", "For", "As", "It"}
ERRORS = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
EXPORTED = [name for name in ddpsched.__all__ if name not in ERRORS]


def public(node: ast.AST, bases: tuple[str, ...] = ()) -> Iterator[tuple[ast.FunctionDef | ast.ClassDef, bool]]:
    """Yield public classes, functions and methods, each with whether a base class may document it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.ClassDef | ast.FunctionDef) or child.name.startswith("_"):
            continue
        yield child, bool(bases)
        if isinstance(child, ast.ClassDef):
            yield from public(child, tuple(map(ast.unparse, child.bases)))


def faults(path: Path) -> Iterator[str]:
    """Yield the faults of the docstrings in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node, inherits in [(tree, False), *public(tree)]:
        name, text = getattr(node, "name", "the module"), ast.get_docstring(node)
        if text is None:
            if not inherits and "overload" not in map(ast.unparse, getattr(node, "decorator_list", ())):
                yield f"{name} has none"
            continue
        if text.split()[0] in OPENINGS:
            yield f"{name} begins with {text.split()[0]!r}"
        if isinstance(node, ast.FunctionDef) and path.name != "cli.py":  # cli.py's docstrings are pages of --help
            raised = {
                ast.unparse(each.exc).partition("(")[0]
                for each in ast.walk(node)
                if isinstance(each, ast.Raise) and each.exc
            }
            lost = sorted(each for each in raised & ERRORS if each not in text)
            if lost:
                yield f"{name} does not name {', '.join(lost)}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_docstrings(path: Path) -> None:
    assert not list(faults(path))


def begins(path: Path) -> Iterator[str]:
    """Yield the first line of each docstring of a file, private ones too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
            yield text.splitlines()[0]


@pytest.mark.parametrize("folder", ["ddpsched", "experiments", "analysis", "report", "tests"])
def test_no_docstring_begins_with_a_fragment(folder: str) -> None:
    lines = [line for path in (ROOT / folder).rglob("*.py") for line in begins(path)]
    assert lines
    assert not [line for line in lines if re.match(r"(Of|What|Whose|All that)\b", line)]


@pytest.mark.parametrize("name", EXPORTED)
def test_exported_names_describe_their_parameters(name: str) -> None:
    value = getattr(ddpsched, name)
    text = inspect.getdoc(value) or ""
    lost = [each for each in inspect.signature(value).parameters if each not in text]
    assert not lost, f"{name} does not describe {lost}"
