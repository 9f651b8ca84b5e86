"""Clocks: those of two ranks against each other, and the wall's against one that is never set."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from ddpsched.doctor.finding import Finding

APART_S = 0.001  # clocks of ranks on one machine are the same clock
JUMP_S = 0.1


@dataclass(frozen=True)
class Now:
    """A moment by both clocks of this process."""

    wall_s: float
    monotonic_s: float

    @classmethod
    def read(cls) -> "Now":
        """Return the present moment."""
        return cls(time.time(), time.monotonic())


def judge_wall(begin: Now, end: Now) -> Finding:
    """Return the finding on the clock of the wall, which dates logs and locks."""
    took_s = end.monotonic_s - begin.monotonic_s
    jump_s = end.wall_s - begin.wall_s - took_s
    says, numbers = f"went {jump_s:+.3f} s beyond the {took_s:.0f} s that passed", {"jump_s": jump_s}
    if abs(jump_s) > JUMP_S:
        remedy = "let chrony or ntpd set the clock before runs: what is dated while it jumps cannot be put in order"
        return Finding("wall clock", "warn", says, remedy, numbers)
    return Finding("wall clock", "ok", says, numbers=numbers)


def judge_offsets(offsets: Sequence[tuple[float, float]]) -> Finding:
    """Return the finding on offsets of ranks' clocks from rank 0's: (offset, largest error) by rank, in seconds."""
    offset_s, error_s = max(offsets[1:], key=lambda each: (abs(each[0]) - each[1] > APART_S, each[1]))
    says = f"a rank's clock is {1e6 * offset_s:+.0f} us from rank 0's, known to {1e6 * error_s:.0f} us"
    numbers = {"offset_s": offset_s, "error_s": error_s}
    if abs(offset_s) - error_s > APART_S:
        remedy = "start ranks of one machine in one container: timelines are corrected by this offset, logs are not"
        return Finding("clocks", "warn", says, remedy, numbers)
    if error_s > APART_S:
        remedy = "run this again while the machine is quiet: timelines place ranks no better than this"
        return Finding("clocks", "warn", says, remedy, numbers)
    return Finding("clocks", "ok", says, numbers=numbers)
