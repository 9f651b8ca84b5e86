"""Damaged and hostile text is refused in one sentence: deep nesting, numbers of thousands of digits, cut values."""

import time
import tomllib
from collections.abc import Callable
from typing import Any

import pytest

from ddpsched.decode import DEEPEST, decode_json, decode_toml, shown

MANY = "1" * 5000


@pytest.mark.parametrize("decode", [decode_json, decode_toml])
def test_as_deep_as_allowed(decode: Callable[[str], Any]) -> None:
    head = "" if decode is decode_json else "a = "
    depth = DEEPEST if decode is decode_json else DEEPEST - 1  # the document is a table
    decode(head + "[" * depth + "]" * depth)
    for deeper in (depth + 1, 200_000):
        with pytest.raises(ValueError, match=f"nested more than {DEEPEST} deep"):
            decode(head + "[" * deeper + "]" * deeper)


@pytest.mark.parametrize("part", ["a", '"a.b"', "'a'"])
@pytest.mark.parametrize("text", ["{} = 1", "[{}]", "[[ {} ]]", "b = {{ {} = 1 }}", 'b = """\n"""\n{} = 1'])
def test_keys_of_many_parts_are_refused_at_once(text: str, part: str) -> None:
    begun = time.perf_counter()
    with pytest.raises(ValueError, match=f"nested more than {DEEPEST} deep"):
        decode_toml(text.format(" . ".join([part] * 50_000)))
    with pytest.raises(ValueError, match="nested"):
        decode_toml(text.format(".".join([part] * (DEEPEST + 1))))
    assert time.perf_counter() - begun < 2


def test_dots_that_are_of_no_key() -> None:
    dots = ".".join("a" * 200)
    texts = (
        f'b = "{dots}"', f"b = '{dots}'", f'b = """\n{dots} " "" \\"""\n{dots}""""',
        f"b = \'\'\'{dots}\n' {dots}\'\'\'",
        f"b = 1 # it's {dots}\n", f'"{dots}" = 1.5', f"'{dots}'.b = 2026-01-01T00:00:00.5", f'b = ["", "{dots}", ""]',
        f'b = """"""\nc = "\\"{dots}"', ".".join("a" * DEEPEST) + " = 1", "\n".join(f"a.k{i} = 1" for i in range(200)),
    )  # fmt: skip
    for text in texts:
        assert decode_toml(text) == tomllib.loads(text)


def test_deep_keys() -> None:
    with pytest.raises(ValueError, match="nested more than"):
        decode_toml(".".join("a" * 5000) + " = 1")
    with pytest.raises(ValueError, match="nested more than"):
        decode_json('{"a": ' * 3000 + "1" + "}" * 3000)


@pytest.mark.parametrize(("decode", "text"), [(decode_json, '{\n"a": %s}'), (decode_toml, "b = 1\na = %s")])
def test_numbers_of_thousands_of_digits(decode: Callable[[str], Any], text: str) -> None:
    with pytest.raises(ValueError, match=r"^line 2: it has a number of 5,000 digits"):
        decode(text % MANY)


def test_what_is_shown_of_a_value() -> None:
    assert shown(1 << 20_000) == "a number of 20,001 bits"
    assert shown([1 << 20_000]) == "a list"
    assert len(shown("x" * 10**6)) < 200


@pytest.mark.parametrize("text", ['{"a": 1, "b": 2, "a": 3}', '[{"b": {"a": 1, "a": 1}}]'])
def test_a_key_that_an_object_has_twice(text: str) -> None:
    with pytest.raises(ValueError, match="it has 'a' twice; keep one of them"):
        decode_json(text)
