"""A folder whose files are the run's own: nothing in it leads elsewhere, so nothing elsewhere is written or deleted."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from ddpsched.errors import DataError


def refuse_links(folder: Path) -> None:
    """Raise DataError where ``folder``, or anything in it at any depth, is a symbolic link; naming the first.

    The folders above may be links, as where all outputs are on another disk.
    """
    for path in _links(folder):
        remedy = "remove the link, or set outputs=... or name=... to another folder"
        raise DataError(f"{path} is a link to {os.readlink(path)}: nothing is written or deleted through it; {remedy}")


def _links(folder: Path) -> Iterator[Path]:
    if folder.is_symlink():
        yield folder
        return
    for place, folders, files in os.walk(folder):
        yield from (path for name in (*folders, *files) if (path := Path(place, name)).is_symlink())


def remove(path: Path) -> None:
    """Remove a file, a folder with all in it, or a link and not what it leads to; nothing where there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)  # what stays takes room, and harms nobody
    else:
        path.unlink(missing_ok=True)
