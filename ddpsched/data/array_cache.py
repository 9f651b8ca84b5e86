"""Arrays kept between runs: ``.npz`` files that several processes may write at once.

A file is written aside, synced and renamed, so a reader sees all of it or none.
"""

import os
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


def default_folder() -> Path:
    """``$DDPSCHED_CACHE``, or else ``~/.cache/ddpsched``."""
    return Path(os.environ.get("DDPSCHED_CACHE") or "~/.cache/ddpsched").expanduser()


def load_arrays(path: Path) -> dict[str, npt.NDArray] | None:
    """The arrays of ``path`` by name; None where there is no such file, or a damaged one."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except (OSError, EOFError, ValueError, zipfile.BadZipFile):
        return None


def save_arrays(path: Path, **arrays: Any) -> None:
    """Write ``arrays`` to ``path``; only a warning where that fails, since a cache costs time and not the run."""
    aside = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.stem, suffix=".part", delete=False) as file:
            aside = Path(file.name)
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        warnings.warn(f"cache {path.parent}: {error}; set DDPSCHED_CACHE to a folder you can write", stacklevel=2)
    finally:
        if aside is not None:
            aside.unlink(missing_ok=True)
