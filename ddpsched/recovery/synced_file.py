"""Files and folders that are on the disk when a call returns."""

import os
from collections.abc import Sequence
from pathlib import Path

MOST_PARTS = os.sysconf("SC_IOV_MAX")  # that the system takes in a call


def write_synced(path: Path, parts: Sequence[bytes | memoryview]) -> None:
    """Write a file that consists of these parts, one behind another, and sync it. Raises OSError, naming the path.

    It takes few system calls: at each one, a thread that writes hands the interpreter to the one that trains, which
    then waits to get it back.
    """
    views = [memoryview(part).cast("B") for part in parts if len(part)]
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            while views:
                views = _after(views, os.writev(file, views[:MOST_PARTS]))
            os.fsync(file)
        finally:
            os.close(file)
    except OSError as error:
        error.filename = str(path)  # not all system calls name it
        raise


def sync(path: Path) -> None:
    """Return when a file's bytes, or a folder's entries, are on the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _after(views: list[memoryview], count: int) -> list[memoryview]:
    """Return what is left of the parts behind their first ``count`` bytes."""
    for number, view in enumerate(views):
        if count < len(view):
            return [view[count:], *views[number + 1 :]]
        count -= len(view)
    return []
