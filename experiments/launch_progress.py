"""How far a launch is: the line on its last step, drawn anew in place where the output is a terminal."""

import os
import time
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ddpsched.terminal import is_live

EVERY_S = 2.0  # between two looks, which cost a launch that is being measured next to nothing
TAIL = 4096  # bytes of a log in which its last line on a step is


class StepLine:
    """The newest line on a step in the log of a run's first rank, from this moment on.

    No thread draws it: ``look`` does. What is printed elsewhere stays above it.
    """

    def __init__(self, console: Console, folder: Path) -> None:
        self._log, self._seen_s, self._begun_s = folder / "logs" / "rank0.log", 0.0, time.time()
        self._live = Live(console=console, auto_refresh=False, transient=True) if is_live(console) else None

    def __enter__(self) -> "StepLine":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def look(self) -> None:
        """Draw the line, where there is a newer one."""
        now = time.monotonic()
        if self._live is None or now - self._seen_s < EVERY_S:
            return
        self._seen_s = now
        if words := last_step(self._log, self._begun_s):
            self._live.update(Text(f"       {words}"), refresh=True)


def last_step(log: Path, since: float = 0.0) -> str:
    """Return the last line on a step of a log, without its time; empty where none was written ``since`` (a time).

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = Path(folder, "rank0.log")
    ...     _ = log.write_text("12:00:00 reading data\\n12:00:10 step 4 of about 60, 2.5 s/step, 0:02:20 left\\n")
    ...     last_step(log)
    'step 4 of about 60, 2.5 s/step, 0:02:20 left'
    """
    try:
        with log.open("rb") as file:
            if os.fstat(file.fileno()).st_mtime < since:
                return ""
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            lines = file.read().decode("utf-8", errors="replace").splitlines()
    except OSError:  # not yet there
        return ""
    found = (line.partition(" ")[2] for line in reversed(lines))
    return next((words for words in found if words.startswith("step ")), "")
