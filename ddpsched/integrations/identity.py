"""Identity of plans: the values that are equal on all ranks, and in a state and the loader that loads it."""

from collections.abc import Iterable, Mapping
from typing import Any

from ddpsched.errors import ConfigError

DEFAULT = "the default"  # of an option that is left out
NAMES = {"data": "data (the digest of its lengths)"}


def as_texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the values as Python writes them, those of an inner mapping under both keys.

    >>> as_texts({"policy": {"kind": "pool"}, "seed": 1})
    {'policy.kind': "'pool'", 'seed': '1'}
    """
    texts: dict[str, str] = {}
    for key, value in values.items():
        inner = {f"{key}.{name}": each for name, each in value.items()} if isinstance(value, Mapping) else {key: value}
        texts |= {name: repr(each) for name, each in inner.items()}
    return texts


def differences(texts: Mapping[str, str], here: Mapping[str, str], place: str) -> str:
    """Return what differs, in the order of ``here``; "" where nothing does. ``place``: the name of ``here``.

    >>> differences({"seed": "1", "last": "'drop'"}, {"seed": "0"}, "here")
    "seed = 1, here 0; last = 'drop', here the default"
    """
    pairs = {key: (texts.get(key, DEFAULT), here.get(key, DEFAULT)) for key in {**here, **texts}}
    return "; ".join(
        f"{NAMES.get(key, key)} = {one}, {place} {other}" for key, (one, other) in pairs.items() if one != other
    )


def check_keys(owner: str, state: Any, keys: Iterable[str]) -> None:
    """Raise ConfigError where the state of a sampler or loader is no mapping with exactly these keys."""
    needed = sorted(keys)
    if not isinstance(state, Mapping) or set(state) != set(needed):
        given = sorted(map(str, state)) if isinstance(state, Mapping) else repr(state)
        raise ConfigError(
            f"the state of a {owner} needs exactly {needed}, got {given}; give what state_dict() returned"
        )


def check_same(
    owner: str,
    state: Mapping[str, Any],
    identity: Mapping[str, Any],
    remedy: str = "make this one as that was, or begin anew",
) -> None:
    """Raise ConfigError, naming all differences and the remedy, where the state's identity is not this one."""
    differing = differences(as_texts({key: state[key] for key in identity}), as_texts(identity), "here")
    if differing:
        raise ConfigError(f"the state is of another {owner}: {differing}; {remedy}")
