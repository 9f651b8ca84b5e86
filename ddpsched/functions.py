"""Functions of the user's, named on the command line."""

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from ddpsched.errors import ConfigError


def function_named(target: str, what: str) -> tuple[Callable[..., Any], str]:
    """The function that ``"module:function"`` names, and the name; ``what`` it is for. Raises ConfigError."""
    module, _, name = target.partition(":")
    if not module or not name:
        raise ConfigError(f"{what} = {target!r}: give it as module:function, for example train:build_{what}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # a console script has its own folder there instead
    try:
        found = getattr(importlib.import_module(module), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise ConfigError(f"{what} = {target!r}: {error}; looked in {os.getcwd()} and on PYTHONPATH") from error
    except Exception as error:
        raise ConfigError(f"{what} = {target!r}: importing {module} raised {type(error).__name__}: {error}") from error
    if not callable(found):
        raise ConfigError(f"{what} = {target!r} is {type(found).__name__}, not a function")
    return found, target
