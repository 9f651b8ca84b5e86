"""What is known of a data set so far: a file a chunk, so that what was measured is not measured again."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ddpsched.planning.array_cache import load_arrays


class Parts:
    """A hidden folder beside ``output`` with the arrays of each chunk.

    ``identity``: what they follow from; where a folder is of another, its parts are worth nothing. Parts are by chunk
    and not by rank, so a later try may have other ranks.
    """

    def __init__(self, output: Path, identity: Mapping[str, Any]) -> None:
        self.folder = output.with_name(f".{output.name}.parts")
        self._identity = json.dumps(identity, sort_keys=True)

    def begin(self) -> None:
        """One rank's work: an empty folder, or the one that is there where it is of the same identity."""
        told = self.folder / "identity.json"
        if not told.exists() or told.read_text(encoding="utf-8") != self._identity:
            self.end()
            self.folder.mkdir(parents=True)
            told.write_text(self._identity, encoding="utf-8")

    def read(self, chunk: int) -> dict[str, Any] | None:
        """The arrays of a chunk; None where they cannot be read."""
        return load_arrays(self._path(chunk))

    def has(self, chunk: int) -> bool:
        """Whether it was measured as a whole."""
        return self._path(chunk).exists()

    def write(self, chunk: int, arrays: Mapping[str, Any]) -> None:
        """All or nothing; OSError as of any file."""
        path = self._path(chunk)
        aside = path.with_suffix(".part")
        with aside.open("wb") as file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)

    def chunks(self) -> Iterator[int]:
        """Numbers of those that are there, rising."""
        yield from sorted(int(path.stem) for path in self.folder.glob("*.npz"))

    def end(self) -> None:
        """One rank's work: nothing is left."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, chunk: int) -> Path:
        return self.folder / f"{chunk:09d}.npz"
