"""The reliability card: the frozen findings of experiments.reliability, in the order of its checks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from experiments.reliability.checks import CHECKS
from experiments.reliability.findings import Finding
from report.wording import ABSENT, listed

FAULTS = "faults"  # the finding whose details list planted faults, and how soon each was detected
NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Row:
    """A line of the card. ``holds``: None where the check has no finding."""

    title: str
    asked: str
    measured: str
    holds: bool | None
    date: str
    command: str


@dataclass(frozen=True)
class Detection:
    """The seconds until faults of a kind were detected."""

    kind: str
    cases: int
    median_s: float
    max_s: float


def card(findings: Mapping[str, Finding]) -> list[Row]:
    """Return a line for each check, then one for each finding of a check that is no more."""
    names = [*CHECKS, *(name for name in findings if name not in CHECKS)]
    return [_row(name, findings.get(name)) for name in names]


def _row(name: str, finding: Finding | None) -> Row:
    if finding is None:
        return Row(name.replace("_", " "), ABSENT, NOT_MEASURED, None, ABSENT, CHECKS[name])
    command = finding.command.removeprefix("python -m experiments.reliability.")
    return Row(finding.title, finding.asked, finding.measured, finding.holds, finding.date, command)


def said(rows: Sequence[Row]) -> str:
    """Return how many checks hold, and by name those that do not.

    >>> said([Row("a", "", "", True, "", ""), Row("b", "", "", False, "", ""), Row("c", "", "", None, "", "")])
    'Of 3 checks 1 holds, 1 does not (b), and 1 is not measured.'
    """
    held, broken, unknown = ([row for row in rows if row.holds is holds] for holds in (True, False, None))
    named = f" ({listed([row.title for row in broken])})" if broken else ""
    return (
        f"Of {len(rows)} checks {len(held)} {_verb(held, 'holds', 'hold')}, {len(broken)} "
        f"{_verb(broken, 'does', 'do')} not{named}, and {len(unknown)} {_verb(unknown, 'is', 'are')} not measured."
    )


def _verb(rows: Sequence[Row], one: str, more: str) -> str:
    return one if len(rows) == 1 else more


def machines(findings: Mapping[str, Finding]) -> str:
    """Return the machines that the findings were measured on."""
    found = {f"{each.machine.get('cpu')}, {each.machine.get('cores')} cores" for each in findings.values()}
    return listed(sorted(found))


def detections(findings: Mapping[str, Finding]) -> list[Detection]:
    """Return for each kind of planted fault how soon it was detected; none where this was not measured."""
    cases: Sequence[Mapping[str, Any]] = findings[FAULTS].details.get("cases", []) if FAULTS in findings else []
    kinds = dict.fromkeys(case["kind"] for case in cases)
    seconds = {kind: [case["seconds"] for case in cases if case["kind"] == kind] for kind in kinds}
    return [
        Detection(kind, len(each), median(known), max(known))
        for kind, each in seconds.items()
        if (known := [value for value in each if value is not None])
    ]
