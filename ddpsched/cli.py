"""The command line. Each command imports what it needs when it runs, so that ``--help`` is quick."""

import functools
from collections.abc import Callable
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from ddpsched.command_exit import guarded as guarded
from ddpsched.command_exit import leave as leave
from ddpsched.monitor.commands import app as runs
from ddpsched.visible_text import visible

if TYPE_CHECKING:
    from ddpsched.watch import Watch

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # [words] of a help text are words
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from ddpsched import __version__

        print(f"ddpsched {__version__}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="print it, and end")
    ] = False,
) -> None:
    """Decide, step by step, which rank runs which samples; keep the gradient exact; measure what it bought."""


app.add_typer(runs, name="runs")

Text = str | None
Texts = list[str] | None
Words = Annotated[Texts, Argument(help="key=value words that override the config")]
Json = Annotated[bool, Option("--json", help="print JSON instead of the table")]
AtLeast1 = functools.partial(Option, min=1, max=2**31 - 1)


def command(function: Callable[..., int | None]) -> Callable[..., None]:
    """Register a subcommand, whose errors become one message; the process ends with the exit code that it returns."""

    @functools.wraps(function)
    def run_and_leave(*args: Any, **options: Any) -> None:
        leave(guarded(lambda: function(*args, **options)))

    return app.command()(run_and_leave)


@command
def run(
    config: Annotated[str, Argument(help="TOML file of the run")],
    overrides: Words = None,
    overwrite: Annotated[bool, Option("--overwrite", help="replace a finished run of this name")] = False,
    restart: Annotated[bool, Option("--restart", help="begin an unfinished run anew, whatever it has done")] = False,
    force: Annotated[
        bool, Option("--force", help="use another device's or model's calibration; auto measures anew")
    ] = False,
) -> int:
    """Run one config in this process: virtual ranks, simulated ranks, or a single rank.

    A run that was stopped goes on from its last checkpoint (train.checkpoint_every).
    """
    from ddpsched.watch import start_watch

    return run_config(config, overrides or [], start_watch(), overwrite=overwrite, restart=restart, force=force)


@command
def advise(
    config: Annotated[str, Argument(help="TOML file of the run")],
    overrides: Words = None,
    steps: Annotated[int, Option(help="steps of each arm that are measured in turn; 0: predict alone")] = 40,
    first: Annotated[int, AtLeast1(help="the best so many are measured, in turn with static")] = 2,
    force: Annotated[bool, Option("--force", help="measure the model anew, whatever is kept")] = False,
    json: Json = False,
) -> None:
    """Predict which policy is fastest for this model, data and device, then measure the best beside static.

    Under torchrun (`-m ddpsched advise ...`) on real ranks. A run with policy.kind=auto takes the fastest by itself.
    """
    from ddpsched.advise.command import Request, answer

    answer(Request(config, overrides or [], steps, first, force, json))


@command
def config(
    tables: Annotated[Texts, Argument(help="tables or keys, as policy or train.keep; without any, all of them")] = None,
    json: Json = False,
) -> None:
    """Print every key of a config with its default, type and meaning, as a TOML file that can be run."""
    from ddpsched.config.keys import as_toml, chosen

    found = chosen(tables or [])
    print(dumps([vars(key) for key in found], indent=2) if json else as_toml(found))


def in_room(name: str, sentence: str) -> None:
    """Register a command of the rooms beside the package, which reads its own arguments."""

    def pass_on(context: typer.Context) -> None:
        from ddpsched.rooms import run_in_room

        leave(guarded(lambda: run_in_room(name, context.args)))

    words = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(name, help=sentence, add_help_option=False, context_settings=words)(pass_on)


in_room("sweep", "Run the runs of a study that are not finished, each with as many ranks as it names.")
in_room("train", "Run one rank of a config, for torchrun: torchrun --nproc-per-node 4 -m ddpsched train CONFIG.")
in_room("analyse", "Write the figures and tables of a study, and compare its arms.")
in_room("timeline", "Draw which rank the others of a run waited for.")
in_room("report", "Build the report from studies.")


@command
def fit(
    run_dir: Annotated[Path, Argument(help="folder of a distributed or virtual run")],
    output: Annotated[Path | None, Option(help="JSON to write, for cost.path of a config")] = None,
) -> None:
    """Fit the affine-quadratic cost to a run's measured times, and print how well it fits."""
    from ddpsched.costs.fit_command import answer

    answer(run_dir, output)


@command
def plan(
    world_size: Annotated[int, AtLeast1(help="G, ranks")],
    global_batch: Annotated[int, AtLeast1(help="B, samples per step over all ranks")],
    lengths: Annotated[
        Path | None, Argument(help="npy, txt, csv, tsv, jsonl, Parquet, or a folder of `save_to_disk`; or --law")
    ] = None,
    law: Annotated[
        Text,
        Option(
            help="draw lengths instead: encyclopedia (whole documents) | chat | code (both of inference requests, not "
            "training samples) | rollouts (synthetic)"
        ),
    ] = None,
    samples: Annotated[int | None, Option(min=1, max=10**8, help="of --law; 65,536 without it")] = None,
    policy: Annotated[
        Texts,
        Option(
            help="static | minmax | balanced | packed | split | token_budget | bins | pool; all but split without it"
        ),
    ] = None,
    max_microbatches: Annotated[int | None, AtLeast1(help="M, most micro-batches of a rank in a step")] = None,
    max_tokens: Annotated[
        int | None, AtLeast1(help="of split, and of --peer megatron: the most tokens of a rank's micro-batch")
    ] = None,
    lookahead: Annotated[int, AtLeast1(help="W, global batches planned at once")] = 1,
    epochs: Annotated[int, AtLeast1(help="E, epochs to plan")] = 1,
    seed: Annotated[int, Option(min=0, max=2**32 - 1, help="of the order, and of --law")] = 0,
    column: Annotated[Text, Option(help="of lengths or lists of token ids; else input_ids, length or lengths")] = None,
    text: Annotated[Texts, Option(help="column of texts to count instead; several are joined")] = None,
    prompt: Annotated[Text, Option(help="column that stands before the text, as data.prompt does")] = None,
    tokenizer: Annotated[Text, Option(help="folder or hub name, for --text")] = None,
    max_length: Annotated[
        int | None,
        Option("--max-length", "--cut", min=1, max=2**20, help="tokens at which samples are cut; 512 with --text"),
    ] = None,
    prefetch: Annotated[int | None, AtLeast1(help="K of minmax; 2 B / G without it")] = None,
    alpha: Annotated[float, Option(help="fixed cost per micro-batch, in padded tokens")] = 0.0,
    gamma: Annotated[float, Option(help="cost of count * longest**2, in padded tokens")] = 0.0,
    gather_alpha: Annotated[float, Option(help="of split: gathering the keys and values of a part, once")] = 0.0,
    gather_beta: Annotated[float, Option(help="likewise, of each token received")] = 0.0,
    calibration: Annotated[Text, Option(help="file of `ddpsched calibrate`, to plan in seconds")] = None,
    memory: Annotated[
        int | None, Option(min=1, max=2**60, help="bytes a rank may use, by the calibration's memory model")
    ] = None,
    peer: Annotated[Texts, Option(help="another package's batching as well; `all` for all")] = None,
    json: Json = False,
    figure: Annotated[Path | None, Option(help="draw the table to this file (png, svg, pdf)")] = None,
    export: Annotated[Path | None, Option(help="write the plans of one --policy: .parquet or .csv")] = None,
) -> None:
    """Plan an epoch of these lengths with every policy, train nothing, and print the yardstick."""
    from ddpsched.compare.command import Request, answer

    answer(
        Request(
            lengths=lengths, law=law, samples=samples,
            column=column, texts=tuple(text or ()), prompt=prompt, tokenizer=tokenizer, max_length=max_length,
            world_size=world_size, global_batch=global_batch, policies=tuple(policy or ()), max_tokens=max_tokens,
            max_microbatches=max_microbatches, lookahead=lookahead, epochs=epochs, seed=seed, prefetch=prefetch,
            alpha=alpha, gamma=gamma, gather_alpha=gather_alpha, gather_beta=gather_beta,
            calibration=calibration, memory=memory, peers=tuple(peer or ()),
            json=json, figure=figure, export=export,
        )
    )  # fmt: skip


@command
def calibrate(
    config: Annotated[str, Argument(help="TOML file of the run whose model and device are measured")],
    output: Annotated[Path, Option(help="JSON to write, for cost.path and memory.path of configs")],
    overrides: Words = None,
    overwrite: Annotated[bool, Option("--overwrite", help="replace a calibration that is there")] = False,
    passes: Annotated[int | None, AtLeast1(help="over the grid; default: 4, more of a quick model")] = None,
    tokens: Annotated[int | None, AtLeast1(help="most padded tokens of a batch; default: 1024, on a GPU 32768")] = None,
    network: Annotated[
        bool, Option("--network", help="under torchrun, instead: all-reduces of its ranks, for executor.network")
    ] = False,
) -> None:
    """Measure time and peak memory by (count, length) on this device, and fit a model to each."""
    from ddpsched.training.calibrate_command import answer

    answer(config, overrides or [], output, overwrite, passes, tokens, network)


@command
def certify(
    words: Annotated[Texts, Argument(metavar="CONFIG key=value", help="TOML file of a run, then overrides")] = None,
    policy: Annotated[Text, Option(help="instead: a tiny model on this policy's plans, on real ranks")] = None,
    trainer: Annotated[Text, Option(help="instead: `transformers`, or module:function that makes one")] = None,
    loader: Annotated[Text, Option(help="instead: module:function that gives a rank's data loader")] = None,
    loss: Annotated[Text, Option(help="module:function, the compute_loss_func of --trainer")] = None,
    target: Annotated[Text, Option(help="train.target of CONFIG, or of a language model on --policy's plans")] = None,
    world_size: Annotated[int | None, Option(min=1, max=1024, help="ranks of --policy, --trainer or --loader")] = None,
    plant: Annotated[
        Text, Option(help="fault to plant: no_scale | repeated_id | missing_id | stale_plan | missing_collective")
    ] = None,
    json: Json = False,
) -> int:
    """Check that the gradient is exact and every sample runs once. Exit code 0 only where all checks hold."""
    from ddpsched.certify.command import Request, answer

    request = Request(
        words=tuple(words or ()), policy=policy, trainer=trainer, loader=loader, loss=loss, target=target,
        world_size=world_size, plant=plant, json=json,
    )  # fmt: skip
    return 0 if answer(request) else 1


@command
def doctor(
    outputs: Annotated[Path, Option(help="folder that runs are to be written to")] = Path("outputs"),
    json: Json = False,
) -> int:
    """Try what training needs on this machine, in less than a minute. Exit code 0 only where no check fails.

    Versions, processors, memory, GPUs, ports, disk; whether two processes slow each other; two ranks that exchange
    messages, one of which is killed; the gradient; torchrun's restarts and exit codes; clocks. Each line says what was
    measured, and what to do where that is not right.
    """
    from ddpsched.doctor.command import Request, answer

    return 0 if answer(Request(outputs, json)) else 1


@command
def sort(
    data: Annotated[str, Argument(help="file or folder of a data set, its name on the hub, or a run's TOML")],
    output: Annotated[Path, Option(help="ordered file to write, for order.path of configs")],
    overrides: Annotated[Texts, Argument(help="key=value words, such as data.text=question data.tokenizer=DIR")] = None,
    metric: Annotated[
        Texts, Option(help="length | rarity | loss | column:NAME | module:function; a further one breaks ties")
    ] = None,
    chunk: Annotated[int, AtLeast1(help="rows measured at a time, which is what memory holds")] = 4096,
    overwrite: Annotated[bool, Option("--overwrite", help="replace a file that is there")] = False,
) -> None:
    """Order a data set by how difficult its samples are: easiest first, by length unless another metric is named.

    Under torchrun (`-m ddpsched sort ...`) ranks measure, sort and write together.
    """
    from ddpsched.sort import command as sort_command
    from ddpsched.sort.measure import Request

    sort_command.sort(Request(data, tuple(overrides or ()), output, tuple(metric or ()), chunk, overwrite))


@command
def audit(
    run_dir: Annotated[Path, Argument(help="folder of a run, outputs/STUDY/RUN, finished or not")],
    json: Json = False,
) -> int:
    """Check that each sample of each epoch was trained once, over all starts of a run. Exit code 0 only if so."""
    from ddpsched.recovery.command import answer

    return 0 if answer(run_dir, json) else 1


@command
def watch(
    run_dir: Annotated[Path, Argument(help="folder of a run, outputs/STUDY/RUN, that goes on or has ended")],
) -> int:
    """Show a run as it goes: each rank's compute against waiting, loss, throughput, time left. Exit code 0 where done.

    Any process may write the folder: with ddpsched.Recorder your own loop does, too. Ctrl-C ends the view
    alone, with exit code 130; a run that fails, with 1.
    """
    from ddpsched.monitor.watching import watch

    return watch(run_dir)


def run_config(
    path: str,
    overrides: list[str],
    watch: "Watch | None" = None,
    **options: Any,
) -> int:
    """Load a config and run it; return the exit code. ``watch`` is not closed, as the process ends after it.

    ``options``: of ``ddpsched.run_loop.run``.
    """

    def body() -> None:
        from ddpsched.config import load
        from ddpsched.run_loop import run as run_loop
        from ddpsched.world import World

        config = load(path, overrides)
        folder = run_loop(config, watch=watch, **options)
        if World.detect().is_main:
            print(visible(f"done: {folder}"))

    return guarded(body)


def main() -> None:
    """Run the ``ddpsched`` command."""
    app()
