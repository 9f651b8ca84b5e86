"""Files that are read whole: no device and no pipe, which may have no end, and no larger than they ever are."""

import errno
import os
import stat
from pathlib import Path

LARGEST = 64 * 2**20  # bytes; a config has a thousand, a calibration some ten thousand


SPECIAL = "a device or a pipe, where only a file is read"


def is_special(path: str | Path) -> bool:
    """Return whether ``path`` is a device, a pipe or a socket: neither file nor folder. Raises OSError for none."""
    mode = os.stat(path).st_mode
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def check_regular(path: str | Path) -> None:
    """Raise OSError where ``path`` is a device, a pipe or a socket, or where there is none; folders are left alone."""
    if is_special(path):
        raise OSError(errno.EINVAL, SPECIAL, str(path))


def read_regular(path: str | Path) -> bytes:
    """Return the bytes of a file. Raises OSError where it is none, or has more than ``LARGEST``."""
    check_regular(path)
    if (size := os.path.getsize(path)) > LARGEST:
        raise OSError(errno.EFBIG, f"{size:,} bytes, at most {LARGEST:,} are read", str(path))
    return Path(path).read_bytes()
