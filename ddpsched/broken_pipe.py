"""Standard output whose reader has ended, as `head` does: nothing is wrong, and nothing more is to be printed."""

import contextlib
import os
import select
import sys

UNREAD = 141  # the exit code of a tool that this ends: 128 + SIGPIPE


def is_unread() -> bool:
    """Return whether the reader of what is printed has ended; then nothing more is printed."""
    with contextlib.suppress(BrokenPipeError):  # what it could not write is dropped, and the next flush has nothing
        sys.stdout.flush()
    try:
        pipe, ends = sys.stdout.fileno(), select.poll()
    except (OSError, AttributeError):  # no file, as in tests; no poll, as on Windows
        return False
    ends.register(pipe, 0)
    unread = any(event & select.POLLERR for _, event in ends.poll(0))
    if unread:
        os.dup2(os.open(os.devnull, os.O_WRONLY), pipe)
    return unread
