"""Shortage of memory, threads, files or room, by a limit of the system or on a full machine: recognised, explained."""

import errno
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# what errors of libraries say where the system refused memory, a thread or a file
SIGNS = (
    "can't start new thread", "cannot allocate memory", "failed to map segment", "bad_alloc", "out of memory",
    "unable to allocate", "resource temporarily unavailable", "thread creation failed", "pthread_create",
    "can't allocate memory", "malloc",
)  # fmt: skip
LEAST_BYTES = 768 * 2**20  # of address space; below, numpy's libraries end the process as they are loaded
LEAST_ROOM = 2**16  # bytes on a disk; below, even the text of an error may be lost
ERRNOS = (errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE)
FULL = (errno.ENOSPC, errno.EDQUOT)  # the disk, or this user's share of it
REMEDY = (
    "raise the limits of this shell (`ulimit -a` shows them: -v memory, -u processes and threads, -n files), lower "
    "executor.threads, or run fewer ranks on this machine"
)


def _address_space() -> int | None:
    """Return the bytes of address space that this process may have; None without a limit."""
    if sys.platform == "win32":
        return None
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def raise_limit() -> str:
    """Return the first remedy of several where this process has a limit of address space; empty without one."""
    limit = _address_space()
    return "" if limit is None else f"raise `ulimit -v`, which is {limit // 1024:,} KiB of address space here, or "


def too_little() -> str | None:
    """Return why this process cannot even begin under its limit of address space; None where it can."""
    limit = _address_space()
    if limit is None or limit >= LEAST_BYTES:
        return None
    least = f"at least {LEAST_BYTES // 1024:,} are needed, with torch about 2,000,000"
    return f"{_rank()}: `ulimit -v` is {limit // 1024:,} KiB of address space, {least}; {REMEDY}"


@contextmanager
def system_errors(path: Path) -> Iterator[None]:
    """Raise OSError for the system's errors while a library of Rust writes ``path``, which raises kinds of its own."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def _rank() -> str:
    return f"rank {os.environ.get('RANK', '0')}"


def shortage(error: BaseException) -> str | None:
    """Return which rank was refused what, and the remedy; None for an error that no shortage caused."""
    cause: BaseException | None = error
    while cause is not None:
        if _is_shortage(cause):
            said = str(cause).strip().splitlines()
            what = f"{type(cause).__name__}: {said[0][:200]}" if said else type(cause).__name__
            return f"{_rank()}: the system gave no more memory or threads ({what}); {raise_limit()}{REMEDY}"
        cause = cause.__cause__ or cause.__context__
    return None


def full_disk(error: BaseException, where: object = None) -> str | None:
    """Return that there is no space left, and the remedy; None for another error.

    ``where``: what was to be written, as a failed write does not name its file.
    """
    if not isinstance(error, OSError) or error.errno not in FULL:
        return None
    lack = "no space left" if error.errno == errno.ENOSPC else "the disk quota is used up"
    remedy = "free some, or write to another disk (outputs=..., or --output, where there is one)"
    return f"{lack} for {where or error.filename or 'what was written'}; {remedy}"


def no_room(path: Path) -> str | None:
    """Return that the disk of ``path`` is full, and the remedy; None where it has some room."""
    if shutil.disk_usage(path).free >= LEAST_ROOM:
        return None
    return full_disk(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)))


def system_fault(error: OSError, where: object = None) -> str:
    """Return an error of the system as one message: a shortage with its remedy, else the file and the system's words.

    ``where``: what was used, for errors that name no file.
    """
    place = error.filename or where or "file system"
    return shortage(error) or full_disk(error, where) or f"{place}: {error.strerror or error}"


def _is_shortage(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in ERRNOS
    text = str(error).lower()
    expected = isinstance(error, RuntimeError | ImportError | OSError | SystemError)
    return isinstance(error, MemoryError) or (expected and any(sign in text for sign in SIGNS))
