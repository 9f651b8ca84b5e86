"""All checks of reliability, one after another. ``python -m experiments.reliability.nightly [NAME ...] [--short]``.

A check that fails does not keep the others from running; the exit code is 0 only where all hold. ``--freeze`` writes
each finding into report/results/reliability/. ``--short``: those that need real launches, in their short forms.
"""

import shlex
import subprocess
import sys
import time
from typing import Annotated

import typer

from experiments.reliability.checks import CHECKS, SHORT
from experiments.reliability.findings import Freeze

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def main(
    names: Annotated[list[str] | None, typer.Argument(help="checks, by the names of their findings; all else")] = None,
    short: Annotated[bool, typer.Option("--short", help="in short, those that need real launches")] = False,
    freeze: Freeze = False,
) -> None:
    """Run the checks."""
    checks = SHORT if short else CHECKS
    if unknown := [name for name in names or [] if name not in checks]:
        print(f"error: {unknown[0]!r} is no check; they are {', '.join(checks)}", file=sys.stderr)
        raise typer.Exit(1)
    if short and freeze:
        print("error: --short and --freeze: a short form is no result to keep; give one of them", file=sys.stderr)
        raise typer.Exit(1)
    failed = []
    for name in names or checks:
        begin = time.monotonic()
        module, *words = shlex.split(checks[name])
        command = [sys.executable, "-m", f"experiments.reliability.{module}", *words, *(["--freeze"] * freeze)]
        code = subprocess.run(command).returncode
        print(f"{name}: exit code {code}, {time.monotonic() - begin:.0f} s", flush=True)
        if code:
            failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else f"all {len(names or checks)} checks hold")
    raise typer.Exit(1 if failed else 0)


if __name__ == "__main__":
    app()
