"""Other packages, imported when they are used and not before."""

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from ddpsched.errors import PeerMissing


def need(module: str, install: str) -> Any:
    """Return the module, imported. Raises PeerMissing where that fails, with ``pip install {install}`` as advice."""
    try:
        return importlib.import_module(module)
    except Exception as error:  # whatever an import raises, the package is missing
        raise _missing(module, install, error) from None


def need_alone(module: str, install: str, without: Iterable[str] = ()) -> Any:
    """Return one module of an installed package, without running the ``__init__`` of the packages above it.

    For packages that import a whole trainer before a module of a few functions can be reached. ``without``:
    modules that it imports for functions that are not called here; every name in them is None. Raises PeerMissing.
    """
    package, *inner = module.split(".")[:-1]
    try:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise ModuleNotFoundError(name=package)
        with _set_aside(package):
            # empty packages in place of those above the module, with the paths that the import system searches
            for depth in range(len(inner) + 1):
                parent = ModuleType(".".join([package, *inner[:depth]]))
                parent.__path__ = ["/".join([folder, *inner[:depth]]) for folder in spec.submodule_search_locations]
                sys.modules[parent.__name__] = parent
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
    """Remove the package's modules within the context, and restore them after it."""

    def loaded() -> list[str]:
        return [name for name in sys.modules if name == package or name.startswith(f"{package}.")]

    before = {name: sys.modules.pop(name) for name in loaded()}
    try:
        yield
    finally:
        for name in loaded():
            del sys.modules[name]
        sys.modules.update(before)
