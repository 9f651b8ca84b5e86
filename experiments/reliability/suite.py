"""The whole test suite, again and again. ``python -m experiments.reliability.suite [--count 20] [--freeze]``.

Each run is a line of ``outputs/suite.jsonl``: its date, how many tests passed and failed, its seconds. A call that was
stopped goes on from the lines of the same code; a run is never repeated because it failed. Twenty runs take hours: with
``--tally`` in a folder that git keeps, another checkout goes on with them.
"""

import json
import os
import re
import subprocess
import sys
import time
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any

import typer

from ddpsched.record_lines import read_sealed, sealed
from experiments.reliability.findings import Finding, Freeze, report

COMMAND = ("-m", "pytest", "--numprocesses", "auto", "--dist", "loadfile", "--no-loadscope-reorder", "-q")
ROOT = Path(__file__).parents[2]
CODE = ("ddpsched", "tests", "experiments", "analysis", "pyproject.toml", "constraints.txt", "Makefile")
COUNTS = re.compile(r"(\d+) (passed|failed|error)")
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def outcome(tests: list[str]) -> dict[str, Any]:
    """Run the suite once; return what became of it."""
    begin = time.monotonic()
    ended = subprocess.run([sys.executable, *COMMAND, *tests], capture_output=True, text=True)
    last = next((line for line in reversed(ended.stdout.splitlines()) if COUNTS.search(line)), "")
    counts = {word: int(number) for number, word in COUNTS.findall(last)}
    failed = [line.split()[1] for line in ended.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "exit_code": ended.returncode,
        "passed": counts.get("passed", 0),
        "failed": counts.get("failed", 0) + counts.get("error", 0),
        "seconds": round(time.monotonic() - begin),
        "names": failed,
    }


def code() -> str:
    """Return the digest of all code and tests, as they are now."""
    digest = blake2b(digest_size=8)
    for path in sorted(path for name in CODE for path in (ROOT / name, *(ROOT / name).rglob("*"))):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(ROOT)}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def runs_of(tally: Path, code: str) -> list[dict[str, Any]]:
    """Return the runs of this code that a tally holds."""
    if not tally.exists():
        return []
    os.truncate(tally, tally.read_bytes().rfind(b"\n") + 1)  # a line that a killed call left incomplete
    rows = [json.loads(line) for _, line in read_sealed(tally)]
    return [row for row in rows if row["code"] == code]


@app.command()
def main(
    tests: Annotated[list[str] | None, typer.Argument(help="files of tests; all else")] = None,
    count: Annotated[int, typer.Option(min=1, help="runs in all, those of the tally included")] = 20,
    tally: Annotated[Path, typer.Option(help="file of the runs so far")] = Path("outputs/suite.jsonl"),
    freeze: Freeze = False,
) -> None:
    """Run the suite so many times in a row."""
    now = code()
    rows = runs_of(tally, now)[:count]
    tally.parent.mkdir(parents=True, exist_ok=True)
    while len(rows) < count:
        row = {"code": now, **outcome(tests or [])}
        with tally.open("a", encoding="utf-8") as file:
            file.write(sealed(json.dumps(row)) + "\n")
        rows.append(row)
        print(f"{len(rows)} of {count}: {row['passed']} passed, {row['failed']} failed, {row['seconds']} s", flush=True)
    green = [row for row in rows if row["exit_code"] == 0]
    named = sorted({name for row in rows for name in row["names"]})
    finding = Finding(
        "suite",
        "The test suite, run in a row",
        f"{count} of {count} green, no retries",
        f"{len(green)} of {count} green, {min(row['passed'] for row in rows):,} tests passed in the least run"
        + (f"; failed: {', '.join(named)}" if named else ""),
        len(green) == count,
        " ".join(["python -m experiments.reliability.suite", *(tests or []), f"--count {count}"]),
        {"runs": rows},
    )
    raise typer.Exit(report(finding, freeze))


if __name__ == "__main__":
    app()
