"""The pairs of scripts, and the lines in which they differ."""

import difflib
import importlib.util
import io
import tokenize
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent
PAIRS = ("torch", "trainer", "accelerate", "lightning", "stream", "packed", "causal_lm", "split", "audio")
IMPORTS = ("import ", "from ")


def path_of(name: str, which: str) -> Path:
    """Return the script of a pair; ``which``: "before" or "after"."""
    return ROOT / name / f"{which}.py"


def load(name: str, which: str) -> ModuleType:
    """Import a script under a name of its own, without running it."""
    spec = importlib.util.spec_from_file_location(f"example_{name}_{which}", path_of(name, which))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def diff(name: str) -> list[str]:
    """Return the lines of the unified diff of a pair, as `diff -u` prints them."""
    old, new = (path_of(name, which).read_text(encoding="utf-8").splitlines() for which in ("before", "after"))
    return list(difflib.unified_diff(old, new, f"{name}/before.py", f"{name}/after.py", lineterm="", n=1))


def num_changed(name: str) -> int:
    """Return how many lines of code the pair differs in, without imports, blank lines and comments.

    A line that replaces another counts once; so the larger of those removed and those added in one place.
    """
    before, after = (_code(path_of(name, which)) for which in ("before", "after"))
    changes = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return sum(max(j - i, m - k) for kind, i, j, k, m in changes if kind != "equal")


def _code(path: Path) -> list[str]:
    """Return the logical lines of a script, without imports, comments and its docstrings."""
    lines, line = [], ""
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type == tokenize.NEWLINE:
            lines.append(line)
            line = ""
        elif token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
            line = f"{line} {token.string}".strip()
    return [each for each in lines if not each.startswith((*IMPORTS, '"""'))]
