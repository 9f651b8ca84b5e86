"""Every key of a config: its default, its type and its sentence, read from the models."""

import ast
import difflib
import inspect
import itertools
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel

from ddpsched.config.run import RunConfig
from ddpsched.errors import ConfigError
from ddpsched.planning.policies import POLICIES

BOUNDS = {"minimum": "from {}", "exclusiveMinimum": "above {}", "maximum": "to {}", "exclusiveMaximum": "below {}"}


@dataclass(frozen=True)
class Key:
    """One key: its table ("" for the top), name, default (None: there is none), type in words, and sentence.

    ``policy``: the kind of the policy that it belongs to; "" for keys of other tables.
    """

    table: str
    name: str
    default: Any
    type: str
    sentence: str
    policy: str = ""

    @property
    def path(self) -> str:
        """The key with its table, as ``train.keep``; a key of the top is its name."""
        return f"{self.table}.{self.name}".lstrip(".")


def keys() -> Iterator[Key]:
    """Yield every key of a run's config, table by table, the policies last."""
    tables = RunConfig.model_fields
    single = {name for name, field in tables.items() if not isinstance(field.default, BaseModel)}
    yield from _keys("", RunConfig, single)
    for name, field in tables.items():
        if name not in single and name != "policy":
            yield from _keys(name, type(field.default))
    for kind, policy in POLICIES.items():
        yield from _keys("policy", policy, policy=kind)


def chosen(words: Sequence[str]) -> list[Key]:
    """Return the keys of these tables, or of these names as ``train.keep``; all without words.

    Raises ConfigError, with the most similar one, for a word that is neither.
    """
    found = list(keys())
    tables = sorted({key.table for key in found if key.table})
    names = sorted({*tables, *(key.path for key in found)})
    for word in words:
        if word not in names:
            near = difflib.get_close_matches(word, names, n=1)
            remedy = f"did you mean {near[0]}?" if near else f"tables are {', '.join(tables)}"
            raise ConfigError(f"config has no table or key {word!r}; {remedy}")
    return [key for key in found if not words or key.table in words or key.path in words]


def as_toml(shown: Sequence[Key]) -> str:
    """Return the keys as a config with all defaults, each under a comment; keys without a default are comments, too.

    Of the policies only the default kind is set, so that a word as policy.kind=auto can take another: keys of one kind
    are refused beside another.
    """
    lines: list[str] = []
    set_policy = RunConfig.model_fields["policy"].default.kind
    for (table, policy), group in itertools.groupby(shown, lambda key: (key.table, key.policy)):
        unset = "# " if policy not in ("", set_policy) else ""
        if table:
            lines += ["", f"{unset}[{table}]" + (f'  # with kind = "{policy}"' if policy else "")]
        for key in group:
            lines += textwrap.wrap(f"{key.sentence} {key.type}", 118, initial_indent="# ", subsequent_indent="# ")
            no_default = key.default is None
            off = unset or ("# " if policy and key.name != "kind" else "")
            lines.append(f"# {key.name} =" if no_default else f"{off}{key.name} = {json.dumps(key.default)}")
    return "\n".join(lines).lstrip("\n")


def _keys(table: str, model: type[BaseModel], names: set[str] | None = None, policy: str = "") -> Iterator[Key]:
    schema, sentences = model.model_json_schema(), _sentences(model)
    for name, field in model.model_fields.items():
        if names is not None and name not in names:
            continue
        default = None if field.is_required() else field.default
        own = name == "kind" and policy  # the policy's own sentence
        sentence = (inspect.getdoc(model) or "").splitlines()[0].rstrip(".:") + "." if own else sentences[name]
        yield Key(table, name, default, _capital(_words(schema["properties"][name], schema)) + ".", sentence, policy)


@cache
def _sentences(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings of a model's fields: the strings that stand behind them in its class, and its bases'."""
    found: dict[str, str] = {}
    for each in reversed(model.__mro__):
        if not (issubclass(each, BaseModel) and each.__module__.startswith("ddpsched.")):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        assert isinstance(tree, ast.ClassDef)
        for field, after in zip(tree.body, tree.body[1:], strict=False):
            is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_text:
                found[field.target.id] = " ".join(str(ast.literal_eval(after.value)).split())  # type: ignore[attr-defined]
    return found


def _words(schema: Mapping[str, Any], whole: Mapping[str, Any]) -> str:
    """Return the type of a JSON schema in words.

    >>> _words({"type": "integer", "exclusiveMinimum": 0, "maximum": 9}, {})
    'integer from 1 to 9'
    """
    if "$ref" in schema:
        return _words(whole["$defs"][schema["$ref"].rpartition("/")[2]], whole)
    if "const" in schema or "enum" in schema:
        return _listed([json.dumps(value) for value in schema.get("enum", [schema.get("const")])])
    if "anyOf" in schema:
        return " or ".join(_words(each, whole) for each in schema["anyOf"] if each.get("type") != "null")
    kind = schema["type"]
    if kind == "array":
        return f"list, each {_words(schema['items'], whole)}"
    if kind == "boolean":
        return "true or false"
    if kind == "integer" and "exclusiveMinimum" in schema:
        least = max(schema.get("minimum", 0), schema["exclusiveMinimum"] + 1)
        schema = {"minimum": least, **{name: value for name, value in schema.items() if "inimum" not in name}}
    bounds = [form.format(f"{schema[name]:g}" if isinstance(schema[name], float) else schema[name])
              for name, form in BOUNDS.items() if name in schema]  # fmt: skip
    return " ".join([{"string": "text"}.get(kind, kind), *bounds])


def _listed(words: list[str]) -> str:
    """Return words as a sentence lists them: a, b or c."""
    return " or ".join([", ".join(words[:-1])] * (len(words) > 1) + words[-1:])


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
