"""Reading a run from TOML and ``key=value`` words, and writing it as TOML."""

import difflib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from ddpsched.config.run import RunConfig
from ddpsched.decode import DEEPEST, LONGEST_SHOWN, check_depth, decode_toml, shown
from ddpsched.errors import ConfigError
from ddpsched.planning.policies import POLICIES
from ddpsched.regular_file import read_regular
from ddpsched.table import Table


def load(path: str | Path, overrides: Iterable[str] = ()) -> RunConfig:
    """Read the TOML file at ``path``, apply ``overrides``, words ``key=value``, and validate.

    Raises ConfigError for a missing or malformed file, an unknown key (with the
    nearest known one), a wrong type, or values that contradict each other.
    """
    values = read_toml(path)
    if tables := ", ".join(f"[{name}]" for name in ("base", "grid", "also") if name in values):
        remedy = f"run them with: ddpsched sweep {path}"
        raise ConfigError(f"config {path}: {tables} make it a study of several runs; {remedy}")
    if words := list(overrides):
        values = apply_overrides(values, words)
    return validate(RunConfig, values, str(path))


def read_toml(path: str | Path) -> dict[str, Any]:
    """Return the file as nested dicts. Raises ConfigError where it is missing or malformed."""
    try:
        return decode_toml(read_regular(path).decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"config {path}: {error.strerror}; give the path of a TOML file") from None
    except ValueError as error:  # the text's, or of a NUL in the path
        raise ConfigError(f"config {path}: not valid TOML: {error}") from None


def apply_overrides(values: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return a copy of ``values`` with each ``table.key=value`` set; value in TOML, or else plain text.

    Raises ConfigError for a word without ``=``, or a key below a value.
    """
    result: dict[str, Any] = {k: dict(v) if isinstance(v, dict) else v for k, v in values.items()}
    for word in overrides:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise ConfigError(f"{shown(word)}: overrides are written key=value, for example policy.kind=minmax")
        set_key(result, key.strip(), _toml_value(key.strip(), text.strip()))
    return result


def set_key(values: dict[str, Any], dotted: str, value: Any) -> None:
    """Set ``values["a"]["b"]`` for ``"a.b"``, making tables on the way. Raises ConfigError where "a" is a value."""
    *tables, last = dotted.split(".")
    if len(tables) >= DEEPEST:
        raise ConfigError(f"{_key(dotted)}: tables {len(tables):,} deep; a key is written table.key=value")
    for table in tables:
        values = values.setdefault(table, {})
        if not isinstance(values, dict):
            raise ConfigError(f"{_key(dotted)}: {_key(table)} is a value, not a table")
    values[last] = value


def _toml_value(key: str, text: str) -> Any:
    try:
        return decode_toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    except ValueError as error:
        raise ConfigError(f"{_key(key)} = {shown(text)}: {error}") from None


def parse(values: Mapping[str, Any], source: str = "config") -> RunConfig:
    """Return the run of ``values``, nested dicts. Raises ConfigError that lists every fault, each after ``source``."""
    return validate(RunConfig, values, source)


MOST_FAULTS = 10  # in a message
T = TypeVar("T", bound=Table)


def validate(table: type[T], values: Mapping[str, Any], source: str) -> T:
    """Return the table of these values. Raises ConfigError that lists every fault, each after its ``source``."""
    try:
        check_depth(values)
        return table.model_validate(values)
    except ValidationError as error:
        found = _of_its_type(error.errors(include_url=False))
        faults = [_describe(fault, table) for fault in found[:MOST_FAULTS]]  # to look for similar keys takes time
        if len(found) > MOST_FAULTS:
            faults.append(f"and {len(found) - MOST_FAULTS} more")
        raise ConfigError("\n".join(f"{source}: {fault}" for fault in faults)) from None
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from None


def _key(key: str) -> str:
    """Return a key as messages show it: as it is, unless it is very long or has characters that are not printed."""
    return key if len(key) <= LONGEST_SHOWN and key.isprintable() else shown(key)


def _is_type(part: str) -> bool:
    """Return whether a part of a place names a type, "constrained-int" and the like, of a value of several types."""
    return not {"-", "["}.isdisjoint(part)


def _of_its_type(faults: Sequence[Any]) -> list[Any]:
    """Return the faults without those that say a value is not of its key's other type, where it is of one of them."""

    def whole(fault: Any) -> tuple[int | str, ...]:
        return tuple(takewhile(lambda part: not _is_type(str(part)), fault["loc"]))

    def of_another(fault: Any) -> bool:
        return any(_is_type(str(part)) for part in fault["loc"][-1:]) and fault["type"].endswith("_type")

    right = {whole(fault) for fault in faults if not of_another(fault)}
    return [fault for fault in faults if not (of_another(fault) and whole(fault) in right)]


def _describe(fault: Any, table: type[Table]) -> str:
    place = [str(part) for part in fault["loc"]]
    kind = place.pop(1) if place[:1] == ["policy"] and len(place) > 1 and place[1] in POLICIES else None
    if fault["type"] == "extra_forbidden":
        return _unknown(".".join(place), kind, table, fault["input"])
    key = _key(".".join(part for part in place if not _is_type(part)))
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "union_tag_invalid":
        return f"{key}.kind = {shown(fault['ctx']['tag'])}: input should be one of {fault['ctx']['expected_tags']}"
    if fault["type"] == "missing":
        return f"{key} is missing" + (f"; policy.kind = {kind!r} needs it" if kind else "")
    if fault["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return f"{key} = {shown(fault['input'])}: needs a table, [{key}] with a line for each of its keys"
    if fault["type"] == "value_error":
        return f"{key}: {message}" if key else message
    return f"{key} = {shown(fault['input'])}: {message[:1].lower()}{message[1:]}"


def _unknown(key: str, kind: str | None, table: type[Table], given: Any) -> str:
    """Return which policies have this key, or the nearest known key."""
    last = key.rpartition(".")[2]
    owners = [repr(name) for name, policy in POLICIES.items() if last in policy.model_fields]
    if kind is not None and owners:
        belongs = f"belongs to kind = {' or '.join(owners)}, not {kind!r}"
        return f"policy: {last} {belongs} (got {last} = {shown(given)}); leave it out, or change policy.kind"
    known = _known_keys(table)
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.4)
    near = near or [k for k in known if k.rpartition(".")[2] == last]
    remedy = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(sorted(known))}"
    return f"unknown key {_key(key)}; {remedy}"


def _known_keys(table: type[BaseModel], prefix: str = "") -> list[str]:
    keys: list[str] = []
    for name, field in table.model_fields.items():
        kinds = [k for k in (field.annotation, *get_args(field.annotation)) if isinstance(k, type)]
        inner = [k for k in kinds if issubclass(k, Table)]
        keys += [prefix + name, *(key for each in inner for key in _known_keys(each, f"{prefix}{name}."))]
    return list(dict.fromkeys(keys))


def dump(config: RunConfig) -> str:
    """Return the config as TOML, every key resolved, unset ones left out."""
    import tomli_w

    return tomli_w.dumps(config.model_dump(exclude_none=True))
