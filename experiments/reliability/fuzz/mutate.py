"""Changes of values, of text and of bytes, drawn from a generator."""

import copy
import math
from collections.abc import Iterator
from datetime import date
from random import Random
from typing import Any

NUMBERS: list[Any] = [
    0, -1, 1, 2, 3, 7, 64, 2**16, 2**16 + 1, 2**20, 2**31 - 1, 2**31, 2**32, 2**40, 2**53 + 1, 2**63 - 1, 2**63, 2**64,
    2**200, 10**9, 10**12, 10**30, -(2**63), -(10**30), 10**400, 0.0, -0.0, 0.5, 1e-9, 5e-324, 1e15, 1e16, 1e300,
    -1e300, math.nan, math.inf, -math.inf,
]  # fmt: skip
HOSTILE_NUMBERS = [10**40, -(10**40), 2**200, 10**400, math.nan, math.inf, -math.inf, 1e300, -1e300]
TEXTS = [
    "",
    "\0",
    "a\0b",
    "x" * 5000,
    "../../..",
    "/dev/null",
    "/proc/self/mem",
    "\n",
    "é" * 300,
    "static",
    "nan",
    "{}",
]
OTHERS: list[Any] = [
    True,
    False,
    [],
    {},
    [1],
    [[1, 2, 3]],
    {"a": 1},
    date(1979, 5, 27),
    [math.nan],
    ["a", 1],
    [[]] * 40,
]


def is_hostile(old: float, new: float) -> bool:
    """Return whether no option that has the number ``old`` takes ``new``: not finite, or beyond 64 bits or float32."""
    return new != new or abs(new) >= (2**62 if isinstance(old, int) else 1e39)


def leaves(values: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value that is no table and no list, and of each that is."""
    if path:
        yield path
    items = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, value in items:
        yield from leaves(value, (*path, key))


def at(values: Any, path: tuple[Any, ...]) -> Any:
    """Return the value at a path."""
    for key in path:
        values = values[key]
    return values


def changed(values: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return a copy with another value at a path."""
    result = copy.deepcopy(values)
    at(result, path[:-1])[path[-1]] = value
    return result


def removed(values: Any, path: tuple[Any, ...]) -> Any:
    """Return a copy without the value at a path."""
    result = copy.deepcopy(values)
    del at(result, path[:-1])[path[-1]]
    return result


def any_value(random: Random) -> Any:
    """Return a value that may stand in a TOML or JSON file."""
    return random.choice(random.choice([NUMBERS, NUMBERS, TEXTS, OTHERS]))


def bytes_changed(random: Random, data: bytes) -> bytes:
    """Return other bytes: some flipped, removed, inserted, repeated, or the end cut off."""
    result = bytearray(data)
    for _ in range(random.choice([1, 1, 1, 2, 8])):
        place, size = random.randrange(len(result) + 1), random.choice([1, 1, 2, 5, 40])
        how = random.randrange(6)
        if how == 0 and place < len(result):
            result[place] ^= 1 << random.randrange(8)
        elif how == 1:
            del result[place : place + size]
        elif how == 2:
            result[place:place] = random.randbytes(size)
        elif how == 3:
            result[place:place] = result[place : place + size]
        elif how == 4:
            del result[place:]
        else:
            result[place:place] = random.choice([b"\0", b"\xff\xfe", b"\n", b"[" * 3000, b'{"a":' * 3000, b"9" * 5000])
        if not result:
            break
    return bytes(result)
