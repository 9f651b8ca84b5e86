"""Measured chunks on disk, a file each, so that an interrupted sort does not measure them again."""

import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddpsched.data.array_cache import load_arrays, write_arrays
from ddpsched.errors import ConfigError, DataError
from ddpsched.own_folder import check_own


class Parts:
    """A hidden folder beside ``output`` with the arrays of each chunk.

    ``identity``: everything that they depend on; parts of another identity are deleted. Parts are by chunk and not by
    rank, so a later attempt may have another number of ranks. One command holds the folder; its rank 0 calls
    ``begin``, and ``end`` or ``leave``.
    """

    def __init__(self, output: Path, identity: Mapping[str, Any]) -> None:
        self.folder = output.resolve().with_name(f".{output.name}.parts")
        self._output, self._identity = output, json.dumps(identity, sort_keys=True).encode()
        self._lock: int | None = None

    def begin(self) -> None:
        """Lock the folder, and empty it unless its parts are of the same identity.

        Raises ConfigError where another command works on the same output, DataError where something in it is a link
        or a pipe.
        """
        while self._lock is None:
            self._try_lock()
        identity = self.folder / "identity.json"
        if not identity.exists() or identity.read_bytes() != self._identity:
            for path in self.folder.glob("*.npz"):
                path.unlink()
            identity.write_bytes(self._identity)

    def _try_lock(self) -> None:
        """Lock the folder until this process ends, unless another command removes its file at the same moment."""
        check_own(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "lock"
        lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            message = "another `ddpsched sort` is writing it; wait for it, or give another file"
            raise ConfigError(f"--output {self._output}: {message}") from None
        if path.exists() and os.fstat(lock).st_ino == path.stat().st_ino:
            self._lock = lock
        else:
            os.close(lock)

    def has(self, chunk: int) -> bool:
        """Return whether a chunk was measured completely."""
        return self._path(chunk).exists()

    def read(self, chunk: int) -> dict[str, Any]:
        """Return the arrays of a chunk. Raises DataError where they are damaged, and removes them."""
        arrays = load_arrays(self._path(chunk))
        if arrays is None:
            self._path(chunk).unlink(missing_ok=True)
            raise DataError(f"{self._path(chunk)}: was damaged and is removed; run the command again to measure it")
        return arrays

    def write(self, chunk: int, arrays: Mapping[str, Any]) -> None:
        """Write the arrays of a chunk, all or nothing. Raises OSError as any file does."""
        write_arrays(self._path(chunk), arrays)

    def end(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.leave()

    def leave(self) -> None:
        """Unlock the folder, and remove it if nothing was measured."""
        if self._lock is None:
            return
        if not any(self.folder.glob("*.npz")):
            shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)
        self._lock = None

    def _path(self, chunk: int) -> Path:
        return self.folder / f"{chunk:09d}.npz"
