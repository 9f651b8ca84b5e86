"""A study is one TOML file: ``[base]`` of a run and ``[grid]`` of what varies.

A grid axis is ``"policy.kind" = ["static", "minmax"]``, or a list of tables
whose keys change together::

    [grid]
    "policy.kind" = ["static", "minmax", "balanced"]
    setting = [
        { name = "g2", world_size = 2, "executor.kind" = "distributed" },
        { name = "g4", world_size = 4, "executor.kind" = "virtual" },
    ]

Each point of the product is one run, named by its values; the first axis varies
fastest, so that the arms of a comparison run one after another. ``[[also]]``
tables add single runs, for an arm that says something in one setting only.
"""

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ddpsched.config import RunConfig, apply_overrides, parse, read_toml, set_key
from ddpsched.errors import ConfigError


def load_study(path: str | Path, overrides: Iterable[str] = ()) -> list[RunConfig]:
    """The runs of a study, in the order they are run.

    ``key=value`` words change the base (and so every run); one that names a grid
    axis, ``policy.kind=minmax``, leaves that one value (and no ``[[also]]``). Raises ConfigError for an
    unknown table, an axis that is no list, or a run that is not valid.
    """
    values = read_toml(path)
    unknown = set(values) - {"base", "grid", "also"}
    if unknown or "base" not in values:
        raise ConfigError(f"study {path}: tables are [base], [grid] and [[also]], found {sorted(values)}")
    grid: dict[str, list[Any]] = dict(values.get("grid", {}))
    base, also = values["base"], values.get("also", [])
    for word in overrides:
        changed = apply_overrides({}, [word])
        axis = word.partition("=")[0]
        if axis in grid:
            grid[axis], also = [_only(grid[axis], _leaf(changed, axis))], []
        else:
            base = apply_overrides(base, [word])
    base = {"study": Path(path).stem, **base}
    points: list[tuple[str, list[tuple[str, Any]]]] = []
    axes = [[(key, value) for value in _values(path, key, choices)] for key, choices in grid.items()]
    for point in itertools.product(*reversed(axes)):
        point = tuple(reversed(point))
        name = "-".join(filter(None, (_label(key, value) for key, value in point))) or "run"
        points.append((name, [pair for key, value in point for pair in _settings(key, value)]))
    points += [(_label("also", table), _settings("also", table)) for table in also]
    runs = [_merged(base, name, pairs, source=f"study {path}, run {name}") for name, pairs in points]
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        raise ConfigError(f"study {path}: several runs share a name: {names}")
    return runs


def _merged(base: dict[str, Any], name: str, pairs: list[tuple[str, Any]], source: str) -> RunConfig:
    run = apply_overrides(base, ())
    for key, value in pairs:
        set_key(run, key, value)
    return parse({**run, "name": name}, source=source)


def _values(path: str | Path, key: str, choices: Any) -> list[Any]:
    if not isinstance(choices, list) or not choices:
        raise ConfigError(f"study {path}: [grid] {key} = {choices!r} must be a list of values to try")
    return choices


def _settings(key: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(inner, one) for inner, one in value.items() if inner != "name"]
    return [(key, value)]


def _label(key: str, value: Any) -> str:
    if isinstance(value, dict):
        return str(value.get("name", "-".join(map(str, value.values()))))
    if key.endswith(".kind"):
        return str(value)
    return f"{key.rpartition('.')[2]}{value}"


def _only(choices: list[Any], wanted: Any) -> Any:
    """The grid's own value of that name, or the word's value as it is."""
    return next((c for c in choices if isinstance(c, dict) and c.get("name") == wanted), wanted)


def _leaf(values: Any, dotted: str) -> Any:
    for part in dotted.split("."):
        values = values[part]
    return values
