"""Outcomes of reading a damaged file, counted."""

import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from ddpsched.errors import DdpschedError

LIMIT_S = 60  # a reader that takes longer hangs, on a busy machine as well
FAULTS = ("traceback", "accepted wrongly", "no place", "too long", "hangs")
LONGEST = 4000  # characters of a message


class Hangs(BaseException):
    """A reader did not return in time."""


class AcceptedWrongly(Exception):
    """A reader took a damaged file for something that nobody wrote."""


@dataclass
class Tally:
    """Counts of outcomes, with the faults' cases."""

    counts: Counter[str] = field(default_factory=Counter)
    cases: dict[str, list[str]] = field(default_factory=dict)

    def add(self, outcome: str, case: str) -> None:
        """Count one outcome; ``case`` says which damage led to it."""
        self.counts[outcome] += 1
        if outcome in FAULTS:
            self.cases.setdefault(outcome, []).append(case)

    @property
    def faults(self) -> int:
        """The number of files that were not taken as they should be."""
        return sum(self.counts[each] for each in FAULTS)

    def examples(self, most: int) -> Iterator[str]:
        """Yield the first cases of each kind of fault, those that look alike once."""
        for outcome, cases in self.cases.items():
            for case in list(dict.fromkeys(cases))[:most]:
                yield f"{outcome}: {case}"

    def __str__(self) -> str:
        words = [f"{self.counts[each]:,} {each}" for each in ("refused", "accepted", *FAULTS)]
        return ", ".join(words)


def taken(read: Callable[[], object], has_place: Callable[[str], bool], must_refuse: bool) -> tuple[str, str]:
    """Return the outcome of ``read()``, and what it said.

    ``has_place``: whether a message names file, key or line. ``must_refuse``: no reader may accept this file.
    """
    try:
        with _limited():
            read()
    except DdpschedError as error:
        message = str(error)
        if len(message) > LONGEST:
            return "too long", f"{len(message):,} characters: {message[:200]!r}"
        return ("refused" if has_place(message) else "no place"), f"{type(error).__name__}: {message[:400]}"
    except Hangs:
        return "hangs", f"over {LIMIT_S} s"
    except AcceptedWrongly as error:
        return "accepted wrongly", str(error)
    except (Exception, SystemExit) as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return "traceback", f"{type(error).__name__}: {str(error)[:200]} ({place.filename}:{place.lineno})"
    return ("accepted wrongly" if must_refuse else "accepted"), ""


@contextmanager
def _limited() -> Iterator[None]:
    """Raise Hangs in the block after ``LIMIT_S`` seconds."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
