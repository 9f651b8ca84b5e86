"""Earlier starts of a run, as its folder has them, checked: when they began, and the records of their steps."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from ddpsched.errors import DataError
from ddpsched.record_lines import unsealed
from ddpsched.records import read_json
from ddpsched.recovery.ledger import Entry
from ddpsched.table import Ranks, Table, Text, first_fault


class Began(Table):
    """A start of a run: after so many steps, at a time, with so many ranks."""

    step: Annotated[int, Field(ge=0, lt=2**62)]
    at: Text
    world_size: Ranks


STARTS = TypeAdapter(list[Began])


def starts_in(folder: Path) -> list[dict[str, Any]]:
    """Return the starts that a run's environment.json lists. Raises DataError where it cannot be read."""
    path = folder / "environment.json"
    try:
        return [each.model_dump() for each in STARTS.validate_python(read_json(path).get("starts", []))]
    except ValidationError as error:
        raise DataError(f"{path}: starts: {first_fault(error)}") from None


def whole_records(folder: Path, steps: Sequence[Entry]) -> dict[Path, int]:
    """Return the bytes of each file of records up to the last line of these steps, which are a run's first.

    Lines behind it may be damaged, as those of a process that was killed. Raises DataError, naming file and line or the
    missing record, where one of these steps' is not what was written.
    """
    due = {(entry.step, rank) for entry in steps for rank in range(len(entry.ranks))}
    ends: dict[Path, int] = {}
    bad: list[str] = []
    for path in sorted(folder.glob("records-rank*.jsonl")):
        ends[path], end = 0, 0
        for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
            end += len(line)
            key = _key(line)
            if key is None:
                bad.append(f"{path}, line {number}, is not what was written")
            elif key[0] < len(steps):
                due.discard(key)
                ends[path] = end
    if due:
        step, rank = min(due)
        fault = bad[0] if bad else f"{folder}/records-rank*.jsonl: the record of step {step}, rank {rank} is missing"
        raise DataError(
            f"{fault}, though the checkpoint is after {len(steps)} steps; put the file back as it was, or begin anew "
            "with --restart"
        )
    return ends


def _key(line: bytes) -> tuple[int, int] | None:
    """Return step and rank of a line; None where it is no whole record."""
    body = unsealed(line[:-1]) if line.endswith(b"\n") else None
    if body is None:
        return None
    row = json.loads(body)
    return row["step"], row["rank"]
