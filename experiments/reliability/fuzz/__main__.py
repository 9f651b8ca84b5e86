"""Count how damaged files are taken.

``python -m experiments.reliability.fuzz configs|records|checkpoints --count N --seed S``
"""

import sys
from typing import Annotated

import typer
from typer import Argument, Option

from experiments.reliability.findings import Finding, Freeze, report
from experiments.reliability.fuzz import checkpoints, configs, records

FUZZERS = {"configs": configs.fuzz, "records": records.fuzz, "checkpoints": checkpoints.fuzz}

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def main(
    what: Annotated[str, Argument(help=" | ".join(FUZZERS))],
    count: Annotated[int, Option(min=1, max=10**6, help="files to damage")] = 100,
    seed: Annotated[int, Option(min=0, max=2**32 - 1, help="of the damage; the same seed damages alike")] = 0,
    show: Annotated[int, Option(min=0, max=1000, help="examples to print of each fault")] = 5,
    freeze: Freeze = False,
) -> None:
    """Damage valid files in many ways, read them, and count how they are taken. Exit code 0 only without a fault."""
    if what not in FUZZERS:
        print(f"error: {what!r}: give one of {', '.join(FUZZERS)}", file=sys.stderr)
        raise typer.Exit(1)
    tally = FUZZERS[what](count, seed)
    for line in tally.examples(show):
        print(line)
    finding = Finding(
        f"fuzzed_{what}",
        f"Damaged {what}",
        "no traceback, none accepted wrongly, each message names the place",
        f"{count:,}: {tally}",
        not tally.faults,
        f"python -m experiments.reliability.fuzz {what} --count {count} --seed {seed}",
    )
    raise typer.Exit(report(finding, freeze))


if __name__ == "__main__":
    app()
