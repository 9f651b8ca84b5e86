"""Files of results, which are gone on with: what was measured is not measured again."""

import os
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from ddpsched.environment import describe
from ddpsched.errors import ConfigError, DataError
from ddpsched.records import read_json, write_json
from ddpsched.table import Table, first_fault


class Launch(Table):
    """A fresh start of all arms.

    ``seconds``: a mean step of each round, by arm; ``samples``: those of the round's steps, over all ranks. ``errors``:
    of the first gradient, relative to the exact one; ``own_errors``: with the loss as it comes, where that is another.
    """

    seed: int
    seconds: dict[str, list[float]]
    samples: dict[str, list[int]]
    errors: dict[str, float]
    own_errors: dict[str, float]
    auto: str | None  # what policy auto took


class Reached(Table):
    """A training up to the target, or to where it was given up; ``least``: the least dev loss that was met."""

    reached: bool
    seconds: float
    samples: int
    steps: int
    least: float


class SeedRuns(Table):
    """A training of each arm from equal weights."""

    seed: int
    arms: dict[str, Reached]


class PeerRow(Table):
    """A policy or a peer on one trace; ``skipped``: why it has no figures."""

    arm: str
    package: str | None
    yardstick: float | None
    times_static: float | None
    gap: float | None  # over the lower bound, of methods that have one
    order_bias: float | None
    same_gradient: bool | None
    samples_cv: float | None
    skipped: str | None


class Frozen(Table):
    """The part that all files have. ``experiment``: what a run that goes on with it must share."""

    version: Literal[1] = 1
    experiment: dict[str, Any]
    environment: dict[str, Any]


class StepsFile(Frozen):
    """Step times. ``left_out``: arms that could not run, with the reason; ``notes``: sentences for readers."""

    kind: Literal["steps"] = "steps"
    left_out: dict[str, str]
    notes: list[str]
    cost: dict[str, Any] | None  # of policy auto
    odb_tokens: int | None
    launches: list[Launch]


class TargetFile(Frozen):
    """Times to a dev loss."""

    kind: Literal["target"] = "target"
    left_out: dict[str, str]
    notes: list[str]
    cost: dict[str, Any] | None
    odb_tokens: int | None
    target: float
    seeds: list[SeedRuns]


class PeersFile(Frozen):
    """The yardstick of all policies and peers, by trace."""

    kind: Literal["peers"] = "peers"
    traces: dict[str, list[PeerRow]]


F = TypeVar("F", bound=Frozen)
KINDS: dict[str, type[Frozen]] = {"steps": StepsFile, "target": TargetFile, "peers": PeersFile}


def read(path: Path) -> Frozen:
    """Return what a file holds. Raises DataError where it is no file of results."""
    values = read_json(path)
    kind = KINDS.get(str(values.get("kind")))
    if kind is None:
        raise DataError(f"{path}: kind = {values.get('kind')!r} is none of {', '.join(KINDS)}; give a --freeze file")
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise DataError(f"{path}: {first_fault(error)}; give a file that --freeze wrote") from None


def begun(path: Path | None, kind: type[F], experiment: dict[str, Any]) -> F | None:
    """Return the file to go on with; None where there is none yet.

    Raises ConfigError for the file of another experiment, and where its folder is missing.
    """
    if path is None:
        return None
    if not path.parent.is_dir():
        raise ConfigError(f"--freeze {path}: there is no folder {path.parent}; make it, or give another path")
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(f"--freeze {path}: {path.parent} cannot be written to; give a path in another folder")
    if not path.exists():
        return None
    found = read(path)
    if not isinstance(found, kind):
        wanted = kind.model_fields["kind"].default
        raise ConfigError(f"--freeze {path}: it holds kind {read_kind(found)!r}, not {wanted!r}; give another file")
    for key in sorted(found.experiment.keys() | experiment.keys()):
        there, here = found.experiment.get(key), experiment.get(key)
        if there != here:
            raise ConfigError(
                f"--freeze {path}: it is of another experiment: {key} = {_short(there)} in it, {_short(here)} now; "
                "give another file, or the options that it was begun with"
            )
    return found


def read_kind(file: Frozen) -> str:
    """Return a file's kind."""
    return str(file.model_dump()["kind"])


def _short(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else repr(value)


def write(path: Path | None, file: Frozen) -> None:
    """Write a file, whole or not at all; nothing without a path."""
    if path is not None:
        write_json(path, file.model_dump(), indent=None)


def environment() -> dict[str, Any]:
    """Return this machine and the versions that results rest on."""
    found = describe()
    others = {name: _version(name) for name in ("accelerate", "online-dynamic-batching")}
    return {"versions": found["versions"] | others, "commit": found["commit"]}


def machine() -> str:
    """Return this machine, whose times are not mixed with another's."""
    found = describe()
    return f"{found['cores']} cores of {found['cpu']}"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
