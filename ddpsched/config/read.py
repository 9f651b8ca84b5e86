"""From TOML and ``key=value`` words to a run, and back."""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from ddpsched.config.base import Table
from ddpsched.config.run import RunConfig
from ddpsched.errors import ConfigError


def load(path: str | Path, overrides: Iterable[str] = ()) -> RunConfig:
    """Read a TOML file, apply ``key=value`` words, validate.

    Raises ConfigError for a missing or malformed file, an unknown key (with the
    nearest known one), a wrong type, or values that contradict each other.
    """
    return parse(apply_overrides(read_toml(path), overrides), source=str(path))


def read_toml(path: str | Path) -> dict[str, Any]:
    """The file as nested dicts; ConfigError where it is missing or malformed."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"config {path}: {error.strerror}; give the path of a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config {path}: not valid TOML: {error}") from None


def apply_overrides(values: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """A copy of ``values`` with each ``table.key=value`` set; value in TOML, or else plain text."""
    result: dict[str, Any] = {k: dict(v) if isinstance(v, dict) else v for k, v in values.items()}
    for word in overrides:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise ConfigError(f"{word!r}: overrides are written key=value, for example policy.kind=minmax")
        set_key(result, key.strip(), _toml_value(text.strip()))
    return result


def set_key(values: dict[str, Any], dotted: str, value: Any) -> None:
    """Set ``values["a"]["b"]`` for ``"a.b"``, making tables on the way."""
    *tables, last = dotted.split(".")
    for table in tables:
        values = values.setdefault(table, {})
        if not isinstance(values, dict):
            raise ConfigError(f"{dotted}: {table} is a value, not a table")
    values[last] = value


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def parse(values: Mapping[str, Any], source: str = "config") -> RunConfig:
    """Validate nested dicts into a ``RunConfig``; ConfigError lists every fault."""
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        faults = [_describe(fault) for fault in error.errors()]
        raise ConfigError("\n".join(f"{source}: {fault}" for fault in faults)) from None


def _describe(fault: Any) -> str:
    if fault["type"] == "extra_forbidden":
        key = ".".join(map(str, fault["loc"]))
        known = _known_keys(RunConfig)
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.4)
        last = key.rpartition(".")[2]
        near = near or [k for k in known if k.rpartition(".")[2] == last]
        hint = f"; did you mean {near[0]}?" if near else f"; known keys: {', '.join(sorted(known))}"
        return f"unknown key {key}{hint}"
    # a value of several kinds has their names in its place, "constrained-int" and the like
    key = ".".join(str(part) for part in fault["loc"] if not ({"-", "["} & set(str(part))))
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "value_error":
        return f"{key}: {message}" if key else message
    return f"{key} = {fault['input']!r}: {message[:1].lower()}{message[1:]}"


def _known_keys(table: type[BaseModel], prefix: str = "") -> list[str]:
    keys: list[str] = []
    for name, field in table.model_fields.items():
        kinds = [k for k in (field.annotation, *get_args(field.annotation)) if isinstance(k, type)]
        inner = next((k for k in kinds if issubclass(k, Table)), None)
        keys += [prefix + name] + (_known_keys(inner, f"{prefix}{name}.") if inner else [])
    return keys


def dump(config: RunConfig) -> str:
    """The config as TOML, every key resolved, unset ones left out."""
    import tomli_w

    return tomli_w.dumps(config.model_dump(exclude_none=True))
