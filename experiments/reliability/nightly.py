"""All checks of reliability in full, one after another. ``python -m experiments.reliability.nightly [NAME ...]``.

A check that fails does not keep the others from running; the exit code is 0 only where all hold. ``--freeze`` writes
each finding into report/results/reliability/.
"""

import subprocess
import sys
import time
from typing import Annotated

import typer

from experiments.reliability.checks import CHECKS
from experiments.reliability.findings import Freeze

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def main(
    names: Annotated[list[str] | None, typer.Argument(help="checks, by the names of their findings; all else")] = None,
    freeze: Freeze = False,
) -> None:
    """Run the checks in full."""
    if unknown := [name for name in names or [] if name not in CHECKS]:
        print(f"error: {unknown[0]!r} is no check; they are {', '.join(CHECKS)}", file=sys.stderr)
        raise typer.Exit(1)
    failed = []
    for name in names or CHECKS:
        begin = time.monotonic()
        module, *words = CHECKS[name].split()
        command = [sys.executable, "-m", f"experiments.reliability.{module}", *words, *(["--freeze"] * freeze)]
        code = subprocess.run(command).returncode
        print(f"{name}: exit code {code}, {time.monotonic() - begin:.0f} s", flush=True)
        if code:
            failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else f"all {len(names or CHECKS)} checks hold")
    raise typer.Exit(1 if failed else 0)


if __name__ == "__main__":
    app()
