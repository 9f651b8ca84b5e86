"""Findings: the results of the reliability checks, printed, and frozen for the report with their date and machine."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from ddpsched.environment import describe
from ddpsched.errors import DataError
from ddpsched.records import read_json, write_json

FROZEN = Path(__file__).parents[2] / "report" / "results" / "reliability"
Freeze = Annotated[bool, typer.Option("--freeze", help="write the finding into report/results/reliability/")]


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        name: of its file, and of the check.
        title: a line of the reliability card.
        asked: what must hold.
        measured: what was found.
        holds: whether it is what must hold.
        command: prints it.
        details: numbers behind it, for tables.
        date: of the measurement; set by ``report``.
        machine: processor, cores and versions; set by ``report``.
    """

    name: str
    title: str
    asked: str
    measured: str
    holds: bool
    command: str
    details: Mapping[str, Any] = field(default_factory=dict)
    date: str = ""
    machine: Mapping[str, Any] = field(default_factory=dict)


def report(finding: Finding, freeze: bool, folder: Path = FROZEN) -> int:
    """Print a finding, and ``freeze`` it; return the exit code of its check: 0 where it holds."""
    print(f"{finding.title}: {finding.measured} (asked: {finding.asked})", flush=True)
    if freeze:
        dated = asdict(finding) | stamp()
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / f"{finding.name}.json", dated)
    return 0 if finding.holds else 1


def stamp() -> dict[str, Any]:
    """Return the date and machine of what is measured now: processor, cores and versions."""
    facts = describe()
    machine = {key: facts[key] for key in ("cpu", "cores")}
    machine |= {key: facts["versions"][key] for key in ("python", "torch")}
    return {"date": datetime.now(UTC).date().isoformat(), "machine": machine}


def frozen(folder: Path = FROZEN) -> dict[str, Finding]:
    """Return the findings of a folder by name. Raises DataError for a file that is none."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        try:
            found[path.stem] = Finding(**read_json(path))
        except TypeError as error:
            raise DataError(f"{path} is no finding ({error}); run its check again with --freeze") from None
    return found
