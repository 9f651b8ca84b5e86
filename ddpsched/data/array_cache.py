"""Arrays kept between runs, in ``.npz`` files that several processes may write at once.

A file is written under another name, synced and renamed, so a reader sees all of it or none.
"""

import os
import tempfile
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np


def load_arrays(path: Path) -> dict[str, np.ndarray] | None:
    """Return the arrays of ``path`` by name; None where there is no such file, or a damaged one."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except (OSError, EOFError, ValueError, zipfile.BadZipFile):
        return None


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write ``arrays`` to ``path``, whole or not at all. Raises OSError as any file does."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.stem, suffix=".part", delete=False) as file:
        try:
            np.savez(file, **arrays)
            sync(file)
            os.replace(file.name, path)
        finally:
            Path(file.name).unlink(missing_ok=True)


def save_arrays(path: Path, **arrays: Any) -> None:
    """Write ``arrays`` to ``path``; warn where that fails, as a missing cache costs time and not the run."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_arrays(path, arrays)
    except OSError as error:
        warnings.warn(f"cache {path.parent}: {error}; set DDPSCHED_CACHE to a folder you can write", stacklevel=2)


def sync(file: IO[bytes]) -> None:
    """Write what an open file still buffers to the disk. Raises OSError where that fails."""
    file.flush()
    os.fsync(file.fileno())
