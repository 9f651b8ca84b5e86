"""Checks of command-line arguments: files to write, and functions of the user's code."""

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ddpsched.decode import decode_json, shown
from ddpsched.errors import ConfigError


def check_output(path: Path, overwrite: bool, example: str) -> None:
    """Raise ConfigError where ``--output PATH`` cannot be written, or exists; ``example``: a name for the file."""
    if not path.parent.is_dir():
        raise ConfigError(f"--output {path}: there is no folder {path.parent}; make it, or give another path")
    if path.is_dir():
        raise ConfigError(f"--output {path}: is a folder; give a file, {path / example} for example")
    if path.exists() and not overwrite:
        raise ConfigError(f"--output {path}: is there already; give another file, or --overwrite to replace it")
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(f"--output {path}: {path.parent} cannot be written to; give a path in another folder")


def function_named(target: str, what: str) -> tuple[Callable[..., Any], str]:
    """Return the function that ``"module:function"`` names, and the name; ``what`` it is for. Raises ConfigError."""
    module, _, name = target.partition(":")
    if not module or not name:
        raise ConfigError(f"{what} = {target!r}: give it as module:function, for example train:build_{what}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # a console script has the folder of scripts there instead
    try:
        function = getattr(importlib.import_module(module), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise ConfigError(f"{what} = {target!r}: {error}; looked in {os.getcwd()} and on PYTHONPATH") from error
    except Exception as error:
        raise ConfigError(f"{what} = {target!r}: importing {module} raised {type(error).__name__}: {error}") from error
    if not callable(function):
        raise ConfigError(f"{what} = {target!r} is {type(function).__name__}, not a function")
    return function, target


def object_given(words: Sequence[str], option: str) -> dict[str, Any] | None:
    """Return the JSON object that ``option=...`` among the words gives; None without it. Raises ConfigError.

    >>> object_given(["run.toml", '--launch={"how": "apart"}'], "--launch")
    {'how': 'apart'}
    """
    for word in words:
        name, _, text = word.partition("=")
        if name == option:
            try:
                value = decode_json(text)
            except ValueError as error:
                raise ConfigError(f"{shown(word)}: not JSON ({error}); leave it out, programs write it") from None
            if not isinstance(value, dict):
                raise ConfigError(f"{shown(word)}: not a JSON object; leave it out, programs write it")
            return value
    return None
