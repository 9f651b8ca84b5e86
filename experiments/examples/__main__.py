"""``python -m experiments.examples [NAME] [--diff]``: other people's loops before and after, certified on two ranks."""

import sys
from typing import Annotated

import typer

from ddpsched.cli import guarded
from ddpsched.errors import ConfigError
from experiments.examples.pairs import PAIRS, diff, num_changed

HEAD = (
    "| example | script | lines changed | steps | gradient, float32 | float64 | parameters after 20 steps, float32 "
    "| float64 | each sample once an epoch |\n|:--|:--|--:|--:|--:|--:|--:|--:|:--|"
)


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def main(
    names: Annotated[list[str] | None, typer.Argument(help="pairs; all of them without")] = None,
    show: Annotated[
        bool, typer.Option("--diff", help="print the lines in which each pair differs; run nothing")
    ] = False,
) -> None:
    """Run each pair of scripts on two ranks, and compare each step with one process that takes the same samples."""
    sys.exit(guarded(lambda: _main(names or list(PAIRS), show)))


def _main(names: list[str], show: bool) -> None:
    if odd := [name for name in names if name not in PAIRS]:
        raise ConfigError(f"{odd[0]!r} is none of the examples {', '.join(PAIRS)}")
    if show:
        print("\n\n".join("\n".join(diff(name)) for name in names))
        return
    from experiments.examples.trial import trials

    scripts = [(name, which, double) for name in names for which in ("before", "after") for double in (False, True)]
    found = dict(zip(scripts, trials(scripts), strict=True))
    print(HEAD)
    for name in names:
        for which in ("before", "after"):
            one, two = found[name, which, False], found[name, which, True]
            figures = [f"{each:.1e}" for each in (one.gradient, two.gradient, one.parameters, two.parameters)]
            lines = num_changed(name) if which == "after" else ""
            print(
                f"| {name} | {which} | {lines} | {one.steps} |",
                *(f"{each} |" for each in figures),
                _yes(one.exactly_once),
            )


def _yes(holds: bool) -> str:
    return "yes |" if holds else "no |"


if __name__ == "__main__":
    app()
