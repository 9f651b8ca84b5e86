"""The log of a launcher in a run's folder: all that is left of a run that failed before it began.

A run writes its status and its config as it begins, once its data and its model are there.
"""

import os
import re
from pathlib import Path

from ddpsched.errors import DataError
from ddpsched.regular_file import check_regular
from ddpsched.run_lock import WAIT, refusal
from ddpsched.visible_text import visible

LAUNCHER_LOGS = "logs/launcher*.log"  # in a run's folder: one of each machine
LAST_BYTES = 2**16  # of a log, in which its last error is sought
LONGEST = 1000  # characters of an error


def launcher_log(folder: Path, machine: int = 0) -> Path:
    """Return the path of a machine's log in a run's folder."""
    return folder / "logs" / ("launcher.log" if machine == 0 else f"launcher-machine{machine}.log")


def launcher_logs(folder: Path) -> list[Path]:
    """Return the logs that launchers have left in a run's folder, machine 0's first."""
    return sorted(folder.glob(LAUNCHER_LOGS), key=lambda path: (len(path.name), path.name))


def never_began(folder: Path) -> str | None:
    """Return why the run of a folder without a status never began; None where no launcher has left a log.

    It is the last error in the logs, as they begin with those of earlier launches. Raises DataError where a process
    holds the folder: its run is about to begin.
    """
    logs = launcher_logs(folder)
    if not logs:
        return None
    if (held := refusal(folder, WAIT)) is not None:
        raise DataError(f"it has not begun yet: {held}")
    errors = (_last_error(log, folder.absolute().name) for log in logs)
    why = next(filter(None, errors), "its launcher names no error")
    return f"it never began: {why}; see {logs[0].relative_to(folder)}"


def _last_error(log: Path, name: str) -> str | None:
    """Return the last error of a log that is not another run's of the launch; None where it has none."""
    try:
        check_regular(log)
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LAST_BYTES))
            lines = file.read(LAST_BYTES).decode(errors="replace").split("\n")
    except OSError as error:
        return f"its log cannot be read ({error.strerror})"
    named = re.compile(rf"(?:error: |failed: (?:.*?/)?{re.escape(name)}: )(.*)")
    return next((visible(found[1], LONGEST) for line in reversed(lines) if (found := named.match(line))), None)
