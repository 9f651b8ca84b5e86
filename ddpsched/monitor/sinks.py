"""Sinks of a run's numbers: TensorBoard, and packages with init, log and finish, as wandb and trackio have them."""

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from ddpsched.decode import shorter
from ddpsched.errors import ConfigError

FLUSH_EVERY_S = 2.0
ONE_AT_A_TIME = ("wandb", "trackio")  # which log one run of a process


@dataclass(frozen=True)
class Naming:
    """The names of a run in its sinks. ``begun``: when its first start was; ``goes_on``: this is a later one."""

    folder: Path
    study: str
    name: str
    config: Mapping[str, Any]
    begun: str
    goes_on: bool

    @property
    def id(self) -> str:
        """Letters and digits that are the same in all starts of this run, and of no other."""
        return blake2b(f"{self.folder.resolve()} {self.begun}".encode(), digest_size=8).hexdigest()


class Sink(Protocol):
    """A receiver of a step's numbers; whatever it does may raise."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self, failed: bool) -> None: ...


class TensorBoard:
    """Event files in the run's ``tensorboard`` folder: ``tensorboard --logdir outputs/STUDY`` shows a study's runs."""

    def __init__(self, naming: Naming) -> None:
        self._writer_of = importlib.import_module("tensorboard.summary").Writer
        self._folder, self._flushed_s = naming.folder / "tensorboard", 0.0
        self._writer: Any = None

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write a step's numbers."""
        if self._writer is None:  # its folder is made only once the run has begun its own
            self._writer = self._writer_of(str(self._folder))
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        if monotonic() - self._flushed_s >= FLUSH_EVERY_S:
            self._writer.flush()
            self._flushed_s = monotonic()

    def close(self, failed: bool) -> None:
        """Write what is not written yet."""
        if self._writer is not None:
            self._writer.close()


class InitLogFinish:
    """A package with ``init``, ``log`` and ``finish``, which has one run at a time."""

    def __init__(self, package: str, naming: Naming) -> None:
        self._package = importlib.import_module(package)
        own = {"id": naming.id} if _takes(self._package.init, "id") else {}
        resume = "allow" if naming.goes_on else "never"
        self._package.init(project=naming.study, name=naming.name, config=dict(naming.config), resume=resume, **own)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log a step's numbers."""
        self._package.log(dict(values), step=step)

    def close(self, failed: bool) -> None:
        """Finish the run there; as a failed one where the package tells these apart."""
        finish = self._package.finish
        finish(**({"exit_code": int(failed)} if _takes(finish, "exit_code") else {}))


def _takes(function: Callable[..., Any], option: str) -> bool:
    return option in inspect.signature(function).parameters


def check_installed(names: Sequence[str]) -> None:
    """Raise ConfigError where the package of a sink is not installed; every rank calls it, before anything begins."""
    for name in names:
        spec = find_spec(name)
        if spec is None or spec.origin is None:  # a folder of this name, as wandb makes one, is no package
            raise ConfigError(f"log.sinks names {name!r}, which is not installed: pip install {name}")


def open_sinks(names: Sequence[str], naming: Naming) -> dict[str, Sink]:
    """Return the sinks by name. Raises ConfigError, with the reason, where one cannot begin."""
    opened: dict[str, Sink] = {}
    for name in names:
        try:
            opened[name] = TensorBoard(naming) if name == "tensorboard" else InitLogFinish(name, naming)
        except Exception as error:  # whatever another package raises: no login, no network, a wrong version
            for each in opened.values():
                with suppress(Exception):  # the first error is the one to correct
                    each.close(failed=True)
            fault = shorter(f"{type(error).__name__}: {error}", 300)
            raise ConfigError(f"log.sinks: {name!r} cannot begin ({fault}); correct that, or leave it out") from error
    return opened
