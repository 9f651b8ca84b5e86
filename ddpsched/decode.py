"""Decoding of JSON and TOML from files that anyone may have written or damaged: each fault is a ValueError.

Python's decoders raise RecursionError for deep nesting, and for a number of thousands of digits a ValueError that names
no place; and what they do accept may be nested too deeply for whatever reads it next.
"""

import json
import re
import sys
import tomllib
from collections.abc import Callable
from functools import partial
from typing import Any

DEEPEST = 64  # tables within tables; a config has 4
LONG_HEXADECIMAL = re.compile("0[xob][0-9A-Fa-f_]{300,}")
# a part of a key, which may be quoted; no quantifier here gives anything back, so a search takes linear time
PART = re.compile(r"""[\w-]++|"(?:[^"\\\n]|\\.)*+"?+|'[^'\n]*+'?+""")
# what a TOML text consists of: strings of several lines, comments, and parts between dots, as of a key or a number
PIECE = re.compile(
    r"""\"{3}(?:[^"\\]|\\[\s\S]|"(?!""))*+"*+|'{3}(?:[^']|'(?!''))*+'*+|#.*+|"""
    rf"""(?P<parts>(?:{PART.pattern})(?:[ \t]*+\.[ \t]*+(?:{PART.pattern}))*+)"""
)
LONGEST_SHOWN = 120  # characters of a value in a message


class _Twice(ValueError):
    """A key that an object has twice."""


def decode_json(text: str | bytes) -> Any:
    """Return the value of a JSON text, none of whose objects has a key twice.

    Raises ValueError with the fault and, where there is one, its line.
    """
    return _decoded(partial(json.loads, object_pairs_hook=_once), text)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        raise _Twice(f"it has {shown(next(name for name in names if names.count(name) > 1))} twice; keep one of them")
    return table


def decode_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text. Raises ValueError with the fault and its line."""
    if (digits := LONG_HEXADECIMAL.search(text)) is not None:  # read without a limit, but no message can show it
        raise ValueError(_too_long(text, digits))
    if any(len(PART.findall(parts)) > DEEPEST for piece in PIECE.finditer(text) if (parts := piece["parts"])):
        raise ValueError(too_deep())  # before tomllib, whose time is quadratic in the parts of a key
    tables: dict[str, Any] = _decoded(tomllib.loads, text)
    return tables


def _decoded(loads: Callable[[Any], Any], text: str | bytes) -> Any:
    try:
        value = loads(text)
    except RecursionError:
        raise ValueError(too_deep()) from None
    except (json.JSONDecodeError, tomllib.TOMLDecodeError, UnicodeDecodeError, _Twice):
        raise
    except ValueError:
        raise ValueError(_too_long(text)) from None
    check_depth(value)
    return value


def check_depth(value: Any) -> None:
    """Raise ValueError where lists and tables are nested more than ``DEEPEST`` deep."""
    level, depth = [value], 0
    while level:
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
            if isinstance(inner, dict | list)
        ]
        depth += 1
        if depth > DEEPEST:
            raise ValueError(too_deep())


def too_deep() -> str:
    """Return the fault of a value that is nested too deeply."""
    return f"it is nested more than {DEEPEST} deep, the most that is read; write it flatter"


def _too_long(text: str | bytes, found: re.Match[str] | None = None) -> str:
    """Return the fault of a number with more digits than Python reads, with its line."""
    words = text.decode(errors="replace") if isinstance(text, bytes) else text
    digits = found or re.search(rf"[0-9][0-9_]{{{sys.get_int_max_str_digits()},}}", words)
    line = "" if digits is None else f"line {words.count(chr(10), 0, digits.start()) + 1}: "
    many = "thousands of" if digits is None else f"{len(digits[0]):,}"
    return f"{line}it has a number of {many} digits; numbers here have at most 19"


def shown(value: object) -> str:
    """Return a value as messages show it: its repr, cut after ``LONGEST_SHOWN`` characters.

    >>> shown("sst2"), shown("a" * 1000)[118:], shown(1 << 20_000)
    ("'sst2'", 'aa... (1,002 characters)', 'a number of 20,001 bits')
    """
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, alone or within
        return f"a number of {value.bit_length():,} bits" if isinstance(value, int) else f"a {type(value).__name__}"
    return shorter(text)


def shorter(text: str, most: int = LONGEST_SHOWN) -> str:
    """Return a text, cut after ``most`` characters."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"
