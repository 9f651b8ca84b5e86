"""The end of a command: expected errors as one message, and the exit code."""

import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from ddpsched.broken_pipe import UNREAD, is_unread
from ddpsched.visible_text import visible


def guarded(body: Callable[[], int | None]) -> int:
    """Return the exit code of ``body``; an expected error becomes one message and exit code 1."""
    from ddpsched.errors import DdpschedError
    from ddpsched.shortage import shortage, system_fault, too_little

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without some letter shows ? for it
    if (reason := too_little()) is not None:
        print(f"error: {reason}", file=sys.stderr)
        return 1
    try:
        return body() or 0
    except DdpschedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if isinstance(error, BrokenPipeError) and is_unread():
            return UNREAD
        if (reason := shortage(error)) is not None:
            print(f"error: {reason}", file=sys.stderr)
        elif isinstance(error, OSError):
            print(visible(f"error: {system_fault(error)}", lines=True), file=sys.stderr)
        else:
            raise
        return 1


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM end the process as Ctrl-C does: ranks and files of the context are cleaned up."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def leave(code: int) -> NoReturn:
    """End the process."""
    from ddpsched.world import World

    if is_unread():
        code = UNREAD
    sys.stderr.flush()
    if World.launched():
        # gloo's threads may abort a process that ends in order; what the command was to write is on the disk
        os._exit(code)
    sys.exit(code)
