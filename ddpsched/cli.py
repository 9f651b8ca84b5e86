"""The command line. Imports what a command needs when it runs: ``--help`` pays for nothing."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Decide, step by step, which rank runs which samples; keep the gradient exact; measure what it bought.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Overrides = Annotated[list[str] | None, typer.Argument(help="key=value words that override the config")]


@app.command()
def run(
    config: Annotated[str, typer.Argument(help="TOML file of the run")],
    overrides: Overrides = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace a finished run of this name")] = False,
) -> None:
    """Run one config in this process: virtual ranks, simulated ranks, or a single rank."""
    raise typer.Exit(run_config(config, overrides or [], overwrite))


@app.command()
def fit(
    run_dir: Annotated[Path, typer.Argument(help="folder of a distributed or virtual run")],
    output: Annotated[Path | None, typer.Option(help="JSON to write, for cost.path of a config")] = None,
) -> None:
    """Fit the affine-quadratic cost to a run's measured times, and say how well it fits."""

    def body() -> None:
        from ddpsched.errors import DataError
        from ddpsched.planning.fit import fit_records
        from ddpsched.records import read_lines

        if not run_dir.is_dir():
            raise DataError(f"{run_dir}: no such folder; give a run's folder, outputs/STUDY/RUN")
        found = fit_records(read_lines(run_dir))
        model = found.model
        print(f"alpha = {model.alpha:.6g} s, beta = {model.beta:.6g} s/token, gamma = {model.gamma:.6g} s/(b*L**2)")
        print(
            f"{found.num_points} points: mean relative error {found.mean_relative_error:.1%}, "
            f"rms residual {found.rms_residual_s:.3g} s, R^2 = {found.r_squared:.4f}"
        )
        if output is not None:
            found.save(output)
            print(f"written to {output}")

    raise typer.Exit(guarded(body))


def run_config(path: str, overrides: list[str], overwrite: bool) -> int:
    """Load a config and run it; the exit code."""

    def body() -> None:
        from ddpsched.config import load
        from ddpsched.run import run as run_loop
        from ddpsched.world import World

        config = load(path, overrides)
        folder = run_loop(config, overwrite=overwrite)
        if World.detect().is_main:
            print(f"done: {folder}")

    return guarded(body)


def guarded(body: Callable[[], None]) -> int:
    """Run ``body``; what ddpsched raises on purpose becomes one message and exit code 1."""
    from ddpsched.errors import DdpschedError

    try:
        body()
    except DdpschedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {error.filename or 'file system'}: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130
    return 0


def main() -> None:
    """Entry point of the ``ddpsched`` command."""
    app()
