"""Studies as TOML files: ``[base]``, the config of a run, and ``[grid]``, the keys that vary.

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
tables add single runs, for an arm that is of interest in one setting only.

A table's values may depend on the other axes' values, which have the same names
here as in the names of runs::

    [[grid.arm]]
    name = "pool"
    "policy.kind" = "pool"
    "policy.max_tokens_for_batch" = { sst2 = 104, gsm8k = 1300 }   # one a data set; tables within for more axes
    task = ["sst2", "gsm8k"]                                       # only with these values of the axis `task`

``[compare]`` says how times are compared, in its defaults here::

    [compare]
    how = "interleaved"     # all arms of a setting and seed in turn, step by step; "processes": as whole runs one after
                            # another, in an order that is drawn, and reversed with the next seed; "apart": for training
                            # alone, times not compared
    baseline = "static"     # the name of the arm that others are compared with; it runs twice (A/A)
    block = 1               # steps of an arm in turn
    margin = 0.02           # two arms whose times differ by less are called the same
"""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ddpsched.config import RunConfig, apply_overrides, parse, read_toml, set_key, validate
from ddpsched.decode import shorter, shown
from ddpsched.errors import ConfigError
from ddpsched.planning.policies import POLICIES
from ddpsched.table import Positive, Table, Text

MOST_RUNS = 10_000
Point = dict[str, Any]  # a value for each axis
Pairs = list[tuple[str, Any]]  # dotted keys and their values


class Compare(Table):
    """[compare]: how the times of arms are compared."""

    how: Literal["interleaved", "processes", "apart"] = "interleaved"
    baseline: Text = "static"
    block: Positive = 1
    margin: Annotated[float, Field(gt=0, lt=1)] = 0.02


@dataclass(frozen=True)
class Study:
    """A study: its runs, the first axis of its grid varying fastest, and how their times are compared."""

    runs: list[RunConfig]
    compare: Compare


def load_study(path: str | Path, overrides: Iterable[str] = ()) -> Study:
    """Return a study. The baseline of each comparison of times is there twice, the second with ``aa = true``.

    ``key=value`` words change the base, and so every run; an option of ``[policy]`` changes the runs whose policy has
    it. A word that names a grid axis, ``policy.kind=minmax``, leaves that one value, and no ``[[also]]``; so does a
    ``.kind`` that the tables of an axis set. Another key that tables set changes in them. A word that begins with the
    name of a table, ``sst2.data.path=DIR``, changes that table, as ``compare.how=apart`` does. Raises ConfigError for
    an unknown table, a grid without an axis, an axis that is no list, a kind that no table has, or a run that is not
    valid.
    """
    values = read_toml(path)
    unknown = set(values) - {"base", "grid", "also", "compare"}
    if unknown or "base" not in values:
        raise ConfigError(
            f"study {path}: tables are [base], [compare], [grid] and [[also]], found {shown(sorted(values))}"
        )
    _check_shape(path, values)
    overrides = list(overrides)
    words = [word for word in overrides if word.startswith("compare.")]
    overrides = [word for word in overrides if word not in words]
    table = apply_overrides({"compare": values.get("compare", {})}, words)["compare"]
    compare = validate(Compare, table, f"study {path}, [compare]")
    if not (values.get("grid") or values.get("also")):
        raise ConfigError(
            f"study {path}: [grid] has no axis, so there is nothing to compare; give one a list of values, such as "
            "\"policy.kind\" = ['static', 'balanced'], or add [[also]] tables"
        )
    grid = {key: _values(path, key, choices) for key, choices in values.get("grid", {}).items()}
    names = {axis: [_label(axis, value) for value in choices] for axis, choices in grid.items()}
    # options: words for the runs that they apply to, set after the grid
    base, also, options = values["base"], values.get("also", []), dict[str, Any]()
    for word in overrides:
        changed = apply_overrides({}, [word])
        key = word.partition("=")[0]
        table = _named(grid, key.partition(".")[0])
        setting = [
            axis for axis, choices in grid.items() if any(isinstance(each, dict) and key in each for each in choices)
        ]
        if key in grid:
            grid[key], also = [_only(grid[key], _leaf(changed, key))], []
        elif table is not None and "." in key:
            table[key.partition(".")[2]] = _leaf(changed, key)
        elif setting and key.endswith(".kind"):
            also = []
            for axis in setting:
                grid[axis] = _of_kind(path, grid[axis], key, _leaf(changed, key))
        elif setting or key.startswith("policy."):
            options[key] = _leaf(changed, key)
        else:
            base = apply_overrides(base, [word])
    base = {"study": Path(path).stem, **base}
    if (size := math.prod(len(choices) for choices in grid.values())) > MOST_RUNS:
        raise ConfigError(
            f"study {path}: [grid] makes {size:,} runs, at most {MOST_RUNS:,}; leave out some of its values"
        )
    points: list[tuple[str, Pairs]] = []
    for combination in itertools.product(*reversed(grid.values())) if grid else ():
        point = dict(zip(grid, reversed(combination), strict=True))
        if _is_allowed(path, point, names):
            labels = [_label(axis, value) for axis, value in point.items()]
            name = "-".join(filter(None, labels)) or "run"  # where no label says anything
            pairs = [pair for axis in point for pair in _settings(axis, point, names)]
            points.append((name, pairs))
            if compare.how != "apart" and compare.baseline in labels:
                points.append((f"{name}-aa", [*pairs, ("aa", True)]))
    points += [(_label("also", table), _settings("also", {"also": table}, {})) for table in also]
    if not points:
        raise ConfigError(
            f"study {path}: [grid] makes no run: no combination of its values is one that its tables allow; "
            f"see what they say of {', '.join(map(shown, grid))}"
        )
    merged = [(name, _merged(base, pairs)) for name, pairs in points]
    for key, value in options.items():
        owners = [run for _, run in merged if _has(run, key)] or [run for _, run in merged]
        for run in owners:
            set_key(run, key, value)
    runs = [parse({**run, "name": name}, source=f"study {path}, run {shorter(name)}") for name, run in merged]
    names_of_runs = [run.name for run in runs]
    if len(set(names_of_runs)) < len(runs):
        raise ConfigError(
            f"study {path}: several runs share a name: {shown(names_of_runs)}; give each value or table another name"
        )
    return Study([run for run in runs if not (run.aa and run.executor.kind == "simulated")], compare)


def _check_shape(path: str | Path, values: dict[str, Any]) -> None:
    """Raise ConfigError where a part of the file is no table, or no list of tables."""
    also = values.get("also", [])
    parts = [(f"[{name}]", values.get(name, {})) for name in ("base", "grid", "compare")]
    parts += [("[[also]]", each) for each in (also if isinstance(also, list) else [also])]
    for name, part in parts:
        if not isinstance(part, dict):
            raise ConfigError(f"study {path}: {name} = {shown(part)} must be a table, with a line for each key")
    if not isinstance(also, list):
        raise ConfigError(f"study {path}: also = {shown(also)} must be a list of tables, each [[also]]")


def _merged(base: dict[str, Any], pairs: Pairs) -> dict[str, Any]:
    run = apply_overrides(base, ())
    for key, value in pairs:
        set_key(run, key, value)
    return run


def _has(run: dict[str, Any], key: str) -> bool:
    """Return whether a word for ``key`` is for this run: not where it is an option of another policy."""
    table, _, option = key.partition(".")
    given = run.get("policy", {})
    kind = given.get("kind", RunConfig.model_fields["policy"].default.kind) if isinstance(given, dict) else None
    policy = POLICIES.get(kind) if isinstance(kind, str) else None  # else the config says what is wrong
    return table != "policy" or policy is None or option.partition(".")[0] in policy.model_fields


def _of_kind(path: str | Path, choices: list[Any], key: str, wanted: Any) -> list[Any]:
    """Return the tables of an axis that set ``key`` to this value. Raises ConfigError where none does."""
    left = [each for each in choices if isinstance(each, dict) and each.get(key) == wanted]
    if not left:
        there = sorted({str(each[key]) for each in choices if isinstance(each, dict) and key in each})
        raise ConfigError(f"study {path}: {key} = {shown(wanted)}; its tables have {', '.join(map(repr, there))}")
    return left


def _values(path: str | Path, key: str, choices: Any) -> list[Any]:
    if not isinstance(choices, list):
        quoted = isinstance(choices, dict) and f'; put a key that has a dot in quotes, such as "{key}.kind" = [...]'
        raise ConfigError(
            f"study {path}: [grid] {key} = {shown(choices)} must be a list of values to try{quoted or ''}"
        )
    if not choices:
        raise ConfigError(f"study {path}: [grid] {key} = [] has no value to try; give it at least one, or leave it out")
    return choices


def _named(grid: dict[str, list[Any]], name: str) -> dict[str, Any] | None:
    """Return the table of that name in any axis, or None."""
    tables = (value for choices in grid.values() for value in choices if isinstance(value, dict))
    return next((table for table in tables if table.get("name") == name), None)


def _is_allowed(path: str | Path, point: Point, names: dict[str, list[str]]) -> bool:
    """Return whether each table of the point allows the point's values of the other axes. Raises ConfigError."""
    for value in point.values():
        for axis in names.keys() & (value if isinstance(value, dict) else {}):
            wanted = value[axis] if isinstance(value[axis], list) else [value[axis]]
            if not set(wanted) <= set(names[axis]):
                raise ConfigError(
                    f"study {path}: {axis} = {shown(value[axis])}; it may name the values {names[axis]} alone"
                )
            if _label(axis, point[axis]) not in wanted:
                return False
    return True


def _settings(axis: str, point: Point, names: dict[str, list[str]]) -> Pairs:
    """Return dotted keys and values of one axis' value, without its name and what it allows of other axes."""
    value = point[axis]
    if not isinstance(value, dict):
        return [(axis, value)]
    labels = {_label(other, point[other]) for other in names}
    known = {name for other in names for name in names[other]}
    inner = {key: one for key, one in value.items() if key != "name" and key not in names}
    return [pair for key, one in inner.items() for pair in _flat(key, one, labels, known)]


def _flat(key: str, value: Any, labels: set[str], known: set[str]) -> Pairs:
    """Return ``{"data": {"rows": 1}}`` as ``data.rows = 1``; of a table keyed by labels, the entries of ``labels``."""
    if not isinstance(value, dict):
        return [(key, value)]
    if value.keys() <= known:
        return [pair for name in value.keys() & labels for pair in _flat(key, value[name], labels, known)]
    return [pair for inner, one in value.items() for pair in _flat(f"{key}.{inner}", one, labels, known)]


def _label(key: str, value: Any) -> str:
    if isinstance(value, dict):
        return str(value.get("name", "-".join(map(str, value.values()))))
    if key.endswith(".kind"):
        return str(value)
    return f"{key.rpartition('.')[2]}{value}"


def _only(choices: list[Any], wanted: Any) -> Any:
    """Return the grid's table of that name, or the wanted value itself."""
    return next((choice for choice in choices if isinstance(choice, dict) and choice.get("name") == wanted), wanted)


def _leaf(values: Any, dotted: str) -> Any:
    for part in dotted.split("."):
        values = values[part]
    return values
