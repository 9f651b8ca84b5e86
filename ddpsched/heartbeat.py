"""Heart-beats: where each rank of a run is, in a file that others read once a rank does not answer.

``logs/heartbeat-rank3.json`` holds ``{"step": 40, "phase": "backward", "collectives": 2, "at_s": ...}``: the phase of
the step that rank 3 is in, how many collectives on gradients it has begun in it, and since when, by the clock that
processes of one machine share. It is written through a memory map, in a microsecond, and is never synced.
"""

import json
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from ddpsched.decode import decode_json

# in the order in which a step passes through them
PHASES = (
    "plan",
    "compile",
    "forward",
    "backward",
    "gradients",
    "vote",
    "optimizer",
    "records",
    "checkpoint",
    "evaluation",
)
WIDTH = 160  # bytes
Beat = Callable[[str, int], None]


def no_heartbeat(phase: str, step: int) -> None:
    """Do nothing: one process alone has nobody who would wait for it."""


@dataclass(frozen=True)
class Sign:
    """The last sign of a rank."""

    rank: int
    step: int
    phase: str
    collectives: int
    at_s: float

    @property
    def progress(self) -> tuple[int, int, int]:
        """Numbers that rise as the rank goes on."""
        return self.step, PHASES.index(self.phase), self.collectives

    def __str__(self) -> str:
        begun = f", {self.collectives} collectives begun" * bool(self.collectives)
        return f"in {self.phase} of step {self.step}{begun}, {max(0.0, monotonic() - self.at_s):.0f} s ago"


class Heartbeat:
    """The file of one rank, open for the time of its run. Raises OSError where it cannot be made."""

    def __init__(self, logs: Path, rank: int) -> None:
        path = _file(logs, rank)
        self._step, self._phase, self._collectives = 0, PHASES[0], 0
        with path.open("w+b") as file:
            file.write(b" " * WIDTH)  # so that no later write needs room on the disk
            file.flush()
            os.fsync(file.fileno())
            self._map = mmap.mmap(file.fileno(), WIDTH)
        self._write()

    def beat(self, phase: str, step: int) -> None:
        """Write that this rank enters a phase of a step."""
        self._collectives *= step == self._step
        self._step, self._phase = step, phase
        self._write()

    def collective(self) -> None:
        """Write that this rank has begun one more collective in this step."""
        self._collectives += 1
        self._write()

    def close(self) -> None:
        """Close the file; it stays as the last sign."""
        self._map.close()

    def _write(self) -> None:
        values = {"step": self._step, "phase": self._phase, "collectives": self._collectives, "at_s": monotonic()}
        self._map[:WIDTH] = json.dumps(values).encode().ljust(WIDTH)


def behind(logs: Path, world_size: int) -> list[Sign]:
    """Return the last signs of the ranks that are furthest behind; none where all are at the same place, or unknown."""
    signs = [sign for rank in range(world_size) if (sign := _read(logs, rank)) is not None]
    if len(signs) < world_size:
        return []
    least = min(sign.progress for sign in signs)
    last = [sign for sign in signs if sign.progress == least]
    return last if len(last) < world_size else []


def _read(logs: Path, rank: int) -> Sign | None:
    """Return the last sign of a rank; None where there is none, or it is just being written."""
    try:
        sign = Sign(rank, **decode_json(_file(logs, rank).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    whole = all(type(number) is int for number in (sign.step, sign.collectives))
    return sign if whole and sign.phase in PHASES and type(sign.at_s) is float else None


def _file(logs: Path, rank: int) -> Path:
    return logs / f"heartbeat-rank{rank}.json"
