"""Checkpoints of a run on the disk: folders that are complete or not there.

``checkpoints/step-00000100/`` holds what ranks wrote, ``state.json``, and ``manifest.json`` with the digest of each
file. It is written as ``step-00000100.part``, synced, the manifest last, and then renamed: a process that is killed at
any moment leaves the earlier checkpoints as they were. What does not match its manifest is not loaded.
"""

import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from ddpsched.errors import DataError
from ddpsched.own_folder import remove
from ddpsched.records import read_json
from ddpsched.recovery.synced_file import sync, write_synced

log = logging.getLogger("ddpsched")
CHECKPOINTS = "checkpoints"
STATE, MANIFEST, PART = "state.json", "manifest.json", ".part"
FORMAT = 2
CHUNK = 2**22


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that matches its manifest: its folder, and ``state.json``."""

    path: Path
    state: Mapping[str, Any]

    @property
    def step(self) -> int:
        """The steps that it was written after, by its name."""
        return _step_of(self.path)


class Checkpoints:
    """The checkpoints of a run's folder, of which the newest ``keep`` stay."""

    def __init__(self, run_dir: Path, keep: int) -> None:
        self.path, self._keep = run_dir / CHECKPOINTS, keep

    def newest(self) -> Checkpoint | None:
        """Return the newest checkpoint that is undamaged; None where there is no checkpoint.

        One that does not match its manifest is named in the log, and the one before it is taken. Raises DataError where
        every one is damaged.
        """
        faults = []
        for path in self._complete():
            try:
                return Checkpoint(path, verified(path))
            except DataError as error:
                faults.append(str(error))
                log.warning("%s; the checkpoint before it is taken", error)
        if faults:
            raise DataError(f"every checkpoint is damaged ({'; '.join(faults)}); begin anew with --restart")
        return None

    def begin(self, step: int) -> Path:
        """Return the folder that a checkpoint after ``step`` steps is written into, by several ranks at once or one."""
        aside = self._folder(step).with_suffix(PART)
        aside.mkdir(parents=True, exist_ok=True)
        return aside

    def commit(self, step: int, state: Mapping[str, Any]) -> Path:
        """Complete the checkpoint whose files lie in ``begin``'s folder; return its folder. Raises OSError."""
        path = self._folder(step)
        aside = path.with_suffix(PART)
        _write(aside / STATE, state)
        files = {file.name: _facts(file) for file in sorted(aside.iterdir())}
        _write(aside / MANIFEST, {"format": FORMAT, "files": files, "digest": _manifest_digest(files)})
        sync(aside)
        remove(path)  # of an earlier attempt that went on from before it
        aside.rename(path)
        sync(self.path)
        for old in list(self._complete())[self._keep :]:
            remove(old)
        return path

    def forget_after(self, step: int) -> None:
        """Remove what a run that goes on after ``step`` steps does not stand on: unfinished and later checkpoints."""
        for path in [*self.path.glob(f"*{PART}"), *self._complete()]:
            if path.suffix == PART or _step_of(path) > step:
                remove(path)

    def _folder(self, step: int) -> Path:
        return self.path / f"step-{step:08d}"

    def _complete(self) -> Iterator[Path]:
        """Yield the folders that are complete, newest first."""
        names = os.listdir(self.path) if self.path.is_dir() else []
        found = [self.path / name for name in names if name.startswith("step-") and name[5:].isdecimal()]
        yield from sorted(found, key=_step_of, reverse=True)


def verified(path: Path) -> dict[str, Any]:
    """Return the state of a checkpoint whose every file is as its manifest says. Raises DataError, naming the file."""
    manifest = read_json(path / MANIFEST)
    files = manifest.get("files")
    if (
        manifest.get("format") != FORMAT
        or not isinstance(files, dict)
        or manifest.get("digest") != _manifest_digest(files)
    ):
        raise DataError(f"{path / MANIFEST} was changed after it was written, or is of another version")
    for name, expected in files.items():
        file = path / name
        if Path(name).name != name or not file.is_file() or _facts(file) != expected:
            raise DataError(f"{file} is not what was written: it is missing, or does not match its checksum")
    if more := sorted(set(os.listdir(path)) - {MANIFEST, *files}):
        raise DataError(f"{path / more[0]} is none of the files that were written; remove it")
    if STATE not in files:
        raise DataError(f"{path} holds no {STATE}")
    return read_json(path / STATE)


def _facts(file: Path) -> dict[str, Any]:
    digest, size = sha256(), 0  # processors have an instruction for it, and users `sha256sum`
    with file.open("rb", buffering=0) as opened:
        while chunk := opened.read(CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return {"bytes": size, "sha256": digest.hexdigest()}


def _manifest_digest(files: Mapping[str, Any]) -> str:
    return sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def _step_of(path: Path) -> int:
    return int(path.name[5:])


def _write(path: Path, value: Any) -> None:
    write_synced(path, [json.dumps(value).encode() + b"\n"])
