"""``ddpsched runs``: its subcommands, as the command line has them."""

from json import dumps
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from ddpsched.command_exit import guarded, leave

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Runs: list them, show one, compare their times, remove some."
)
Json = Annotated[bool, Option("--json", help="print JSON instead of the table")]


@app.command("ls")
def list_runs(
    folder: Annotated[Path, Argument(help="folder of all outputs, of a study, or of a run")] = Path("outputs"),
    json: Json = False,
) -> None:
    """List runs, the latest last: state, steps, policy, ranks, start. Reads status.json, not the records."""

    def body() -> None:
        from ddpsched.monitor.listing import list_runs

        list_runs(folder, json)

    leave(guarded(body))


@app.command("show")
def show_run(run: Annotated[Path, Argument(help="folder of a run, outputs/STUDY/RUN")], json: Json = False) -> None:
    """Show one run: its state, what it ran on, and the means of all its steps, rank by rank."""

    def body() -> None:
        from ddpsched.monitor.showing import show_run

        show_run(run, json)

    leave(guarded(body))


@app.command("compare")
def compare_runs(
    baseline: Annotated[Path, Argument(help="folder of a run, or of a whole study")],
    others: Annotated[list[Path] | None, Argument(help="folders of runs to compare with it")] = None,
    json: Json = False,
) -> None:
    """Compare step times: ratios with intervals of launches, above the noise of the baseline run twice (A/A)."""
    leave(guarded(lambda: print_comparison(baseline, others or [], json)))


@app.command("rm")
def remove_runs(
    runs: Annotated[list[Path], Argument(help="folders of runs, outputs/STUDY/RUN")],
    yes: Annotated[bool, Option("--yes", help="do not ask")] = False,
    json: Json = False,
) -> None:
    """Remove runs that have ended, with their records and models. A running one is refused."""

    def body() -> None:
        from ddpsched.monitor.removing import remove_runs

        remove_runs(runs, yes, json)

    leave(guarded(body))


def print_comparison(baseline: Path, others: list[Path], json: bool) -> None:
    """Print the times of runs over the baseline's. Raises DataError where they are not compared."""
    from ddpsched.rooms import enter_rooms

    enter_rooms()
    from analysis.compare_runs import compared
    from analysis.terminal import console, verdicts
    from ddpsched.terminal import fitting

    tables = compared(baseline, others)
    if json:
        print(dumps(tables, indent=2))
        return
    out = console()
    for table in tables:
        out.print(f"\n{table['label']}", soft_wrap=True)
        out.print(fitting(verdicts(table), out))
