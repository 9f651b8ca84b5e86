"""The outputs folder: a file written, synchronised and renamed as records are, and a lock as runs take it."""

import contextlib
import errno
import fcntl
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from ddpsched.doctor.finding import Finding, Setting
from ddpsched.shortage import FULL

NAME = "disk"
SIZE = 4 * 2**20
LEAST_FREE = 2**30
SLOW_S = 1.0  # records are synchronised while ranks wait


@dataclass(frozen=True)
class Disk:
    """Results of writing.

    ``folder``: the outputs folder, or what of its path exists. ``error``: the errno of a write that failed, 0 of one
    that did not. ``locked``: whether a lock kept a second process out; None where the file system has no locks.
    """

    folder: Path
    error: int = 0
    written_s: float = 0.0
    free_bytes: int = 0
    locked: bool | None = True


def check(setting: Setting) -> list[Finding]:
    """Return the finding on the outputs folder."""
    return [judge(measure(setting.outputs))]


def measure(outputs: Path) -> Disk:
    """Write a file in the outputs folder and lock it; leave nothing behind."""
    folder = next(each for each in (outputs.absolute(), *outputs.absolute().parents) if each.is_dir())
    part, whole = (folder / f".ddpsched-doctor-{os.getpid()}{end}" for end in (".part", ""))
    try:
        begin = time.perf_counter()
        with part.open("wb") as file:
            file.write(os.urandom(SIZE))
            file.flush()
            os.fsync(file.fileno())
        part.replace(whole)
        took_s = time.perf_counter() - begin
        return Disk(folder, 0, took_s, shutil.disk_usage(folder).free, keeps_out(whole))
    except OSError as error:
        return Disk(folder, error.errno or errno.EIO)
    finally:
        for path in (part, whole):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def keeps_out(path: Path) -> bool | None:
    """Return whether a lock on a file keeps a second one out; None where the file system has no locks."""
    with path.open("rb+") as first, path.open("rb+") as second:
        try:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return None
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def judge(disk: Disk) -> Finding:
    """Return the finding."""
    if disk.error:
        says = f"{disk.folder}: writing {SIZE >> 20} MiB failed: {os.strerror(disk.error)}"
        remedy = "free some space there, or give another folder" if disk.error in FULL else "give another folder"
        return Finding(NAME, "fail", says, f"{remedy}: outputs=DIR of runs, --outputs DIR here")
    says = (
        f"{disk.folder}: {SIZE >> 20} MiB written, synchronised and renamed in {1e3 * disk.written_s:.0f} ms, "
        f"{disk.free_bytes / 2**30:.1f} GiB free"
    )
    numbers = {"written_s": disk.written_s, "free_bytes": float(disk.free_bytes)}
    if not disk.locked:
        says += ", no locks (flock)" if disk.locked is None else ", a lock (flock) does not keep a second process out"
        remedy = "let no two runs of one name write there at once, or keep outputs on a local disk"
        return Finding(NAME, "warn", says, remedy, numbers)
    if disk.free_bytes < LEAST_FREE:
        return Finding(NAME, "warn", f"{says}: less than {LEAST_FREE >> 30} GiB", "free some space", numbers)
    if disk.written_s > SLOW_S:
        remedy = "write outputs to a faster disk: ranks wait while records are written"
        return Finding(NAME, "warn", f"{says}: longer than {SLOW_S:.0f} s", remedy, numbers)
    return Finding(NAME, "ok", f"{says}, locks work", numbers=numbers)
