"""Findings: the result of one check, what was measured, and what to do about it."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ddpsched.local_ranks import Outcome, at_fault

State = Literal["ok", "warn", "fail", "skip"]
NAME_WIDTH = 15


@dataclass(frozen=True)
class Setting:
    """The folders of an examination. ``outputs``: where runs are to be written. ``scratch``: removed at its end."""

    outputs: Path
    scratch: Path


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    ``says``: what was measured, with units, or the reason why it could not be. ``remedy``: what to do, unless the state
    is "ok" or "skip". ``numbers``: those in ``says``, for programs.

    >>> Finding("disk", "warn", "0.2 GiB free", remedy="free some space").line
    'warn  disk             0.2 GiB free -> free some space'
    """

    name: str
    state: State
    says: str
    remedy: str | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert (self.remedy is None) == (self.state in ("ok", "skip")), self
        assert "\n" not in self.line, self

    @property
    def line(self) -> str:
        """The finding in one line."""
        remedy = "" if self.remedy is None else f" -> {self.remedy}"
        return f"{self.state:<6}{self.name:<{NAME_WIDTH}}  {self.says}{remedy}"

    def as_dict(self) -> dict[str, Any]:
        """Return what ``--json`` prints; NaN and infinity, which JSON lacks, become null."""
        numbers = {name: value if math.isfinite(value) else None for name, value in self.numbers.items()}
        return {"name": self.name, "state": self.state, "says": self.says, "remedy": self.remedy, "numbers": numbers}


def failed(findings: Iterable[Finding]) -> list[str]:
    """Return the names of the checks that failed."""
    return [each.name for each in findings if each.state == "fail"]


def one_line(text: str, most: int = 240) -> str:
    """Return text without line breaks, shortened in its middle.

    >>> one_line("a  b\\nc")
    'a b c'
    """
    words = " ".join(text.split())
    return words if len(words) <= most else f"{words[: most // 2]} ... {words[-most // 2 :]}"


def why_failed(outcomes: Sequence[Outcome]) -> str:
    """Return in one line which ranks failed by themselves and how, with the last line of one that left no error.

    >>> why_failed([Outcome(0, "answered"), Outcome(1, "raised", says="raised:\\nValueError: y")])
    'rank 1 raised ValueError: y'
    """
    texts = []
    for each in at_fault(outcomes):
        printed = each.log.strip().splitlines()[-1:] if each.ended in ("died", "silent") else []
        texts.append("; ".join([f"rank {each.rank} {each.brief}", *(f"it printed last: {line}" for line in printed)]))
    return one_line("; ".join(texts), 480)
