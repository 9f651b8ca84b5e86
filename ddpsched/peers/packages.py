"""Other packages, imported when they are asked and not before."""

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from ddpsched.errors import PeerMissing


def need(module: str, install: str) -> Any:
    """The module, imported; PeerMissing where it cannot be, with ``pip install {install}`` as advice."""
    try:
        return importlib.import_module(module)
    except Exception as error:  # a package that breaks while it is imported is as absent as one that is not there
        raise _missing(module, install, error) from None


def need_alone(module: str, install: str, without: Iterable[str] = ()) -> Any:
    """One module of an installed package, without running the ``__init__`` of the packages above it.

    For packages that import a whole trainer before a module of a few functions can be reached. ``without``:
    modules that it imports for functions that are not called here; every name in them is None.
    """
    package = module.partition(".")[0]
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise PeerMissing(f"{package} is not installed; pip install {install}")
    folders = list(spec.submodule_search_locations)
    try:
        with _set_aside(package):
            _add_parents(module, folders)
            for name in without:
                sys.modules[name] = _Nothing(name)
            return importlib.import_module(module)
    except Exception as error:
        raise _missing(module, install, error) from None


def _missing(module: str, install: str, error: Exception) -> PeerMissing:
    package = module.partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and error.name == package:
        return PeerMissing(f"{package} is not installed; pip install {install}")
    return PeerMissing(f"{module} cannot be imported ({type(error).__name__}: {error}); pip install {install}")


class _Nothing(ModuleType):
    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


@contextmanager
def _set_aside(package: str) -> Iterator[None]:
    """Inside, the package has not been imported; afterwards it is as it was."""

    def ours() -> list[str]:
        return [name for name in sys.modules if name == package or name.startswith(f"{package}.")]

    before = {name: sys.modules.pop(name) for name in ours()}
    try:
        yield
    finally:
        for name in ours():
            del sys.modules[name]
        sys.modules.update(before)


def _add_parents(module: str, folders: list[str]) -> None:
    """Empty packages in place of those above ``module``, which tell the import system where to look."""
    above = module.split(".")[:-1]
    for depth in range(1, len(above) + 1):
        parent = ModuleType(".".join(above[:depth]))
        parent.__path__ = ["/".join([folder, *above[1:depth]]) for folder in folders]
        sys.modules[parent.__name__] = parent
