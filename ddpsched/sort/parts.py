"""What is known of a data set so far: a file a chunk, so that what was measured is not measured again."""

import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddpsched.data.array_cache import load_arrays, write_arrays
from ddpsched.errors import ConfigError, DataError


class Parts:
    """A hidden folder beside ``output`` with the arrays of each chunk.

    ``identity``: what they follow from; where a folder is of another, its parts are worth nothing. Parts are by chunk
    and not by rank, so a later try may have other ranks. One process holds the folder; its rank 0 calls ``begin``,
    and ``end`` or ``leave``.
    """

    def __init__(self, output: Path, identity: Mapping[str, Any]) -> None:
        self.folder = output.resolve().with_name(f".{output.name}.parts")
        self._output, self._identity = output, json.dumps(identity, sort_keys=True).encode()
        self._lock: int | None = None

    def begin(self) -> None:
        """An empty folder, or the one that is there where it is of the same identity.

        ConfigError where another command is at work on the same output.
        """
        self._hold()
        told = self.folder / "identity.json"
        if not told.exists() or told.read_bytes() != self._identity:
            for path in self.folder.glob("*.npz"):
                path.unlink()
            told.write_bytes(self._identity)

    def _hold(self) -> None:
        """Lock the folder until this process ends, or ``end`` removes it."""
        while True:
            self.folder.mkdir(parents=True, exist_ok=True)
            path = self.folder / "lock"
            lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                raise ConfigError(
                    f"--output {self._output}: another `ddpsched sort` is at work on it; wait for it, or give "
                    "another file"
                ) from None
            if path.exists() and os.fstat(lock).st_ino == path.stat().st_ino:  # else it was removed meanwhile
                self._lock = lock
                return
            os.close(lock)

    def has(self, chunk: int) -> bool:
        """Whether it was measured as a whole."""
        return self._path(chunk).exists()

    def read(self, chunk: int) -> dict[str, Any]:
        """The arrays of a chunk. DataError where they are damaged: they are then removed."""
        found = load_arrays(self._path(chunk))
        if found is None:
            self._path(chunk).unlink(missing_ok=True)
            raise DataError(f"{self._path(chunk)}: was damaged, and is removed; the same command measures it again")
        return found

    def write(self, chunk: int, arrays: Mapping[str, Any]) -> None:
        """All or nothing; OSError as of any file."""
        write_arrays(self._path(chunk), arrays)

    def end(self) -> None:
        """Nothing is left."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._release()

    def leave(self) -> None:
        """Keep what was measured, if anything was."""
        if self._lock is not None and not any(self.folder.glob("*.npz")):
            shutil.rmtree(self.folder, ignore_errors=True)
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _path(self, chunk: int) -> Path:
        return self.folder / f"{chunk:09d}.npz"
