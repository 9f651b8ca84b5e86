"""A folder whose files are the run's own: nothing in it leads elsewhere, so nothing elsewhere is written or deleted.

Nor is anything in it a device or a pipe, which whoever opens it may wait for without end.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from ddpsched.errors import DataError
from ddpsched.regular_file import SPECIAL, is_special

ELSEWHERE = "set outputs=... or name=... to another folder"


def check_own(folder: Path, elsewhere: str = ELSEWHERE) -> None:
    """Raise DataError where ``folder``, or anything in it at any depth, is a symbolic link, a device or a pipe.

    The folders above may be links, as where all outputs are on another disk. ``elsewhere``: what may be done instead of
    removing a link; empty for nothing.
    """
    for path in _all(folder):
        if path.is_symlink():
            fault = f"is a link to {os.readlink(path)}: nothing is written or deleted through it; remove the link"
            raise DataError(f"{path} {fault}{elsewhere and f', or {elsewhere}'}")
    refuse_special(folder)


def refuse_special(folder: Path) -> None:
    """Raise DataError where ``folder``, or anything in it at any depth, is a device, a pipe or a socket."""
    for path in _all(folder):
        with contextlib.suppress(OSError):  # there is none, or none that may be looked at: whoever reads it says so
            if is_special(path):
                raise DataError(f"{path} is {SPECIAL}; remove it, or take another folder")


def _all(folder: Path) -> Iterator[Path]:
    yield folder
    for place, folders, files in os.walk(folder):
        yield from (Path(place, name) for name in (*folders, *files))


def remove(path: Path) -> None:
    """Remove a file, a folder with all in it, or a link and not what it leads to; nothing where there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)  # what stays takes room, and harms nobody
    else:
        path.unlink(missing_ok=True)
