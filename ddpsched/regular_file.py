"""Files that are read whole: no device and no pipe, which may have no end, and no larger than they ever are."""

import errno
import os
import stat
from pathlib import Path

LARGEST = 64 * 2**20  # bytes; a config has a thousand, a calibration some ten thousand


def check_regular(path: str | Path) -> None:
    """Raise OSError where ``path`` is a device, a pipe or a socket, or where there is none; folders are left alone."""
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "a device or a pipe, where only a file is read", str(path))


def read_regular(path: str | Path) -> bytes:
    """Return the bytes of a file. Raises OSError where it is none, or has more than ``LARGEST``."""
    check_regular(path)
    if (size := os.path.getsize(path)) > LARGEST:
        raise OSError(errno.EFBIG, f"{size:,} bytes, at most {LARGEST:,} are read", str(path))
    return Path(path).read_bytes()
