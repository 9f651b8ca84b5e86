"""The command line. Imports what a command needs when it runs: ``--help`` pays for nothing."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from ddpsched.watch import Watch

app = typer.Typer(
    help="Decide, step by step, which rank runs which samples; keep the gradient exact; measure what it bought.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # [words] of a help text are words
)

Overrides = Annotated[list[str] | None, typer.Argument(help="key=value words that override the config")]


@app.command()
def run(
    config: Annotated[str, typer.Argument(help="TOML file of the run")],
    overrides: Overrides = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace a finished run of this name")] = False,
    force: Annotated[bool, typer.Option("--force", help="use a calibration of another model or device")] = False,
) -> None:
    """Run one config in this process: virtual ranks, simulated ranks, or a single rank."""
    from ddpsched.watch import start_watch

    leave(run_config(config, overrides or [], overwrite, force, start_watch()))


@app.command()
def fit(
    run_dir: Annotated[Path, typer.Argument(help="folder of a distributed or virtual run")],
    output: Annotated[Path | None, typer.Option(help="JSON to write, for cost.path of a config")] = None,
) -> None:
    """Fit the affine-quadratic cost to a run's measured times, and say how well it fits."""

    def body() -> None:
        from ddpsched.costs.regression import fit_records
        from ddpsched.errors import DataError
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


@app.command()
def plan(
    lengths: Annotated[
        Path, typer.Argument(help="npy, txt, csv, tsv, jsonl or Parquet: tokens of each sample, or texts")
    ],
    world_size: Annotated[int, typer.Option(min=1, help="G, ranks")],
    global_batch: Annotated[int, typer.Option(min=1, help="B, samples per step over all ranks")],
    policy: Annotated[
        list[str] | None,
        typer.Option(help="static | minmax | balanced | packed | token_budget | bins | pool; all without it"),
    ] = None,
    max_microbatches: Annotated[
        int | None, typer.Option(min=1, help="M, most micro-batches of a rank in a step")
    ] = None,
    lookahead: Annotated[int, typer.Option(min=1, help="W, global batches planned at once")] = 1,
    epochs: Annotated[int, typer.Option(min=1, help="E, epochs to plan")] = 1,
    seed: Annotated[int, typer.Option(help="of the order")] = 0,
    column: Annotated[str, typer.Option(help="column of a table that holds the lengths")] = "length",
    text: Annotated[list[str] | None, typer.Option(help="column of texts to count instead; several are joined")] = None,
    prompt: Annotated[str | None, typer.Option(help="column that stands before the text, as data.prompt does")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="folder or hub name, for --text")] = None,
    max_length: Annotated[int, typer.Option(help="where --text cuts, in tokens")] = 512,
    prefetch: Annotated[int | None, typer.Option(min=1, help="K of minmax; 2 B / G without it")] = None,
    alpha: Annotated[float, typer.Option(help="what a micro-batch costs on top, in padded tokens")] = 0.0,
    gamma: Annotated[float, typer.Option(help="what count * longest**2 costs, in padded tokens")] = 0.0,
    calibration: Annotated[
        str | None, typer.Option(help="file of `ddpsched calibrate`: plan and score in its time")
    ] = None,
    memory: Annotated[int | None, typer.Option(help="bytes a rank may use, by the calibration's memory model")] = None,
    peer: Annotated[
        list[str] | None, typer.Option(help="another package's batching beside them; `all` for all")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="print JSON instead of the table")] = False,
    figure: Annotated[Path | None, typer.Option(help="draw the table to this file (png, svg, pdf)")] = None,
    export: Annotated[Path | None, typer.Option(help="write the plans of one --policy as Parquet")] = None,
) -> None:
    """Plan an epoch of these lengths with every policy, train nothing, and print the yardstick."""

    def body() -> None:
        from ddpsched.compare.command import Request, answer

        answer(
            Request(
                lengths=lengths, column=column, texts=tuple(text or ()), prompt=prompt, tokenizer=tokenizer,
                max_length=max_length,
                world_size=world_size, global_batch=global_batch, policies=tuple(policy or ()),
                max_microbatches=max_microbatches, lookahead=lookahead, epochs=epochs, seed=seed, prefetch=prefetch,
                alpha=alpha, gamma=gamma, calibration=calibration, memory=memory, peers=tuple(peer or ()),
                json=json, figure=figure, export=export,
            )
        )  # fmt: skip

    raise typer.Exit(guarded(body))


@app.command()
def calibrate(
    config: Annotated[str, typer.Argument(help="TOML file of the run whose model and device are measured")],
    output: Annotated[Path, typer.Option(help="JSON to write, for cost.path and memory.path of configs")],
    overrides: Overrides = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace a calibration that is there")] = False,
    passes: Annotated[int | None, typer.Option(min=1, help="over the grid; default: 4, more of a quick model")] = None,
    tokens: Annotated[
        int | None, typer.Option(min=1, help="most padded tokens of a batch; default: 1024, on a GPU 32768")
    ] = None,
) -> None:
    """Measure time and peak memory by (count, length) on this device, and fit a model to each."""

    def body() -> None:
        from ddpsched.config import load
        from ddpsched.costs.fit_calibration import summary, table
        from ddpsched.terminal import plain_console
        from ddpsched.training.calibrate import calibrate_to

        found = calibrate_to(output, load(config, overrides or []), overwrite, passes, tokens)
        plain_console().print(table(found))
        print(summary(found))
        print(f"written to {output}")

    raise typer.Exit(guarded(body))


@app.command()
def certify(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="CONFIG key=value", help="TOML file of a run, then overrides")
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="instead: a tiny model on this policy's plans, on real ranks")
    ] = None,
    trainer: Annotated[str | None, typer.Option(help="instead: `transformers`, its Trainer")] = None,
    loader: Annotated[str | None, typer.Option(help="instead: module:function that gives a rank's data loader")] = None,
    loss: Annotated[str | None, typer.Option(help="module:function, the compute_loss_func of --trainer")] = None,
    world_size: Annotated[int | None, typer.Option(min=1, help="ranks of --policy, --trainer or --loader")] = None,
    plant: Annotated[
        str | None,
        typer.Option(
            help="a fault that must be found: no_scale | repeated_id | missing_id | stale_plan | missing_collective"
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="print JSON instead of the table")] = False,
) -> None:
    """Is the gradient the one it claims to be, and every sample run once? Exit code 0 only where all of it holds."""
    held = False

    def body() -> None:
        nonlocal held
        from ddpsched.certify.command import Request, answer

        held = answer(
            Request(
                words=tuple(words or ()), policy=policy, trainer=trainer, loader=loader, loss=loss,
                world_size=world_size, plant=plant, json=json,
            )
        )  # fmt: skip

    raise typer.Exit(guarded(body) or (0 if held else 1))


@app.command()
def sort(
    data: Annotated[str, typer.Argument(help="file or folder of a data set, its name on the hub, or a run's TOML")],
    output: Annotated[Path, typer.Option(help="ordered file to write, for order.path of configs")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="key=value words, such as data.text=question data.tokenizer=DIR")
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(help="length | rarity | loss | column:NAME | module:function; a further one breaks ties"),
    ] = None,
    chunk: Annotated[int, typer.Option(min=1, help="rows measured at a time, which is what memory holds")] = 4096,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace a file that is there")] = False,
) -> None:
    """Order a data set by how difficult its samples are: easiest first, by length unless another metric is named.

    Under torchrun (`-m ddpsched sort ...`) ranks measure, sort and write together.
    """

    def body() -> None:
        from ddpsched.sort.command import answer
        from ddpsched.sort.work import Request

        answer(Request(data, tuple(overrides or ()), output, tuple(metric or ()), chunk, overwrite))

    leave(guarded(body))


def leave(code: int) -> NoReturn:
    """End the process."""
    from ddpsched.world import World

    sys.stdout.flush()
    sys.stderr.flush()
    if World.launched():
        # gloo's threads may abort a process that ends in order; what the command was to write is on the disk
        os._exit(code)
    sys.exit(code)


def run_config(
    path: str, overrides: list[str], overwrite: bool, force: bool = False, watch: "Watch | None" = None
) -> int:
    """Load a config and run it; the exit code. The process ends after it: ``watch`` stays as it is."""

    def body() -> None:
        from ddpsched.config import load
        from ddpsched.run_loop import run as run_loop
        from ddpsched.world import World

        config = load(path, overrides)
        folder = run_loop(config, overwrite=overwrite, force=force, watch=watch)
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
