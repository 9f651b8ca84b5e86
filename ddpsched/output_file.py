"""A file that a command is to write: whether it can, said before the work begins."""

import os
from pathlib import Path

from ddpsched.errors import ConfigError


def check_output(path: Path, overwrite: bool, example: str) -> None:
    """ConfigError where ``--output PATH`` cannot be written, or is there already; ``example``: a name for the file."""
    if not path.parent.is_dir():
        raise ConfigError(f"--output {path}: there is no folder {path.parent}; make it, or give another path")
    if path.is_dir():
        raise ConfigError(f"--output {path}: is a folder; give a file, {path / example} for example")
    if path.exists() and not overwrite:
        raise ConfigError(f"--output {path}: is there already; give another file, or --overwrite to replace it")
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(f"--output {path}: {path.parent} cannot be written to; give a path in another folder")
