"""Arrays kept between runs, in ``.npz`` files that several processes of one user may write at once.

A file is written under another name, synced and renamed, so a reader sees all of it or none. It holds a digest of its
arrays. What another user owns or may write is not read: arrays decide which tokens are trained.
"""

import os
import stat
import tempfile
import warnings
import zipfile
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

import numpy as np

DIGEST = "digest"  # the name of an array that no caller has


def load_arrays(path: Path) -> dict[str, np.ndarray] | None:
    """Return the arrays of ``path`` by name; None where there is none, or it is damaged or another user's."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as opened:
            if not _is_mine(os.fstat(opened.fileno())):
                return None
            with np.load(opened, allow_pickle=False) as file:
                arrays = dict(file)
    except (OSError, EOFError, ValueError, zipfile.BadZipFile):
        return None
    found = arrays.pop(DIGEST, None)
    return arrays if found is not None and found.tobytes() == _digest(arrays) else None


def refusal(folder: Path) -> str | None:
    """Return why ``folder`` keeps no arrays: another user owns it, or may write into it; None where it may be used."""
    try:
        found = folder.stat()
    except OSError:
        return None  # there is none, or it cannot be used, as writing into it says
    if _is_mine(found):
        return None
    return f"another user owns it, or may write into it (mode {stat.S_IMODE(found.st_mode):o}): it is not used"


def _is_mine(found: os.stat_result) -> bool:
    """Return whether this user alone may write."""
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _digest(arrays: Mapping[str, Any]) -> bytes:
    digest = blake2b(digest_size=16)
    for name, value in sorted(arrays.items()):
        array = np.ascontiguousarray(value)
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        digest.update(array.data if array.size else b"")
    return digest.digest()


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write ``arrays`` to ``path``, whole or not at all. Raises OSError as any file does."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.stem, suffix=".part", delete=False) as file:
        try:
            np.savez(file, **{**arrays, DIGEST: np.frombuffer(_digest(arrays), dtype=np.uint8)})
            sync(file)
            os.replace(file.name, path)
        finally:
            Path(file.name).unlink(missing_ok=True)


def save_arrays(path: Path, **arrays: Any) -> None:
    """Write ``arrays`` to ``path``; warn where that fails, as a missing cache costs time and not the run.

    The folder is made for this user alone, as files are.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_arrays(path, arrays)
    except OSError as error:
        warnings.warn(f"cache {path.parent}: {error}; set DDPSCHED_CACHE to a folder you can write", stacklevel=2)


def sync(file: IO[bytes]) -> None:
    """Write what an open file still buffers to the disk. Raises OSError where that fails."""
    file.flush()
    os.fsync(file.fileno())
