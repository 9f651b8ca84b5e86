"""Run a study: ``python -m experiments.sweep STUDY [key=value ...] [--on slurm] [--dry-run] [--overwrite] [--force]``.

All arms of a setting and seed start together and take turns step by step, so that their times can be compared; with
``compare.how=apart`` each run is a process of its own. Distributed ones start under torchrun on a free port. What is
finished is skipped, failed runs are reported at the end and in the exit code; Ctrl-C ends what is running and leaves
the finished runs as they are. With ``--on slurm`` each of these is a task of a Slurm array, which Ctrl-C leaves going.
"""

import shlex
import signal
import time
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from ddpsched.config import RunConfig
from ddpsched.errors import DdpschedError
from ddpsched.records import write_json
from ddpsched.run_folder import read_environment, read_status
from ddpsched.shortage import system_fault
from ddpsched.terminal import plain_console
from ddpsched.visible_text import visible
from experiments.finished import is_done
from experiments.launches import Launch, launches
from experiments.launching import HERE, Ended, Node, command, config_path, run_launch, terminate
from experiments.slurm import Cluster, cluster_of, run_jobs, shape_of
from experiments.study import load_study

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
console = plain_console(soft_wrap=True)
PAIR_SHARE, PAIR_ROUNDS = 0.1, 3  # of the time of a study; rounds of alone, pair, pair, alone


def sweep(
    study: str,
    overrides: list[str],
    *,
    dry_run: bool = False,
    overwrite: bool = False,
    force: bool = False,
    pair: bool = True,
    cluster: Cluster | None = None,
) -> int:
    """Run the launches of a study that are not finished; return 0 where all are done, else 1.

    ``pair``: measure afterwards whether ranks on this machine slow each other, where the study has such ranks.
    ``cluster``: to submit them to, else they run here, one after another.
    Raises ConfigError for a study that is not valid, RunExistsError for a finished run of another config.
    """
    found = load_study(study, overrides)
    everything = launches(found)
    done = [not overwrite and is_done(launch) for launch in everything]
    waiting = [launch for launch, skipped in zip(everything, done, strict=True) if not skipped]
    flags = [flag for flag, asked in (("--overwrite", overwrite), ("--force", force)) if asked]
    for launch in (launch for launch, skipped in zip(everything, done, strict=True) if skipped):
        console.print(f"skip   {launch.label} (done; --overwrite runs it again)")
    if dry_run:
        _say_commands(waiting, flags, cluster)
        return 0
    failed: dict[str, str] = {}
    begin = time.monotonic()
    for launch, ended in _run_here(waiting, flags) if cluster is None else run_jobs(cluster, waiting, flags):
        failed |= {str(run.run_dir): reason for run, reason in ended if reason is not None}
        _say(launch, ended)
    took_s = time.monotonic() - begin
    if failed:  # before the pair test, which may fail as well
        console.print(f"{len(failed)} of {len(found.runs)} runs failed: {', '.join(failed)}", style="red")
    if pair and cluster is None:
        _pair_test([run for launch in waiting for run in launch.runs], took_s)
    return 1 if failed else 0


def _say_commands(waiting: Sequence[Launch], flags: Sequence[str], cluster: Cluster | None) -> None:
    for launch in waiting:
        shape = None if cluster is None else shape_of(launch, cluster)
        node = HERE if shape is None or shape.nodes == 1 else Node(0, shape.nodes, "HOST:PORT", "JOB")
        of = "" if shape is None else f" ({shape})"
        for process in launch.processes():
            files = [config_path(run, node) for run in process.runs]
            console.print(f"would run {process.label}{of}: {shlex.join(command(process, files, flags, node))}")


def _run_here(waiting: Sequence[Launch], flags: Sequence[str]) -> Iterator[tuple[Launch, Ended]]:
    """Run launches one after another, and yield each with how its runs ended."""
    begin, ran = time.monotonic(), 0
    work = _work(waiting)
    for number, launch in enumerate(waiting):
        if "--overwrite" not in flags and is_done(launch):
            console.print(f"skip   {launch.label} (another sweep has finished it meanwhile)")
            continue
        eta = (time.monotonic() - begin) / ran * sum(work[number:]) if ran else None
        left = "" if eta is None else f", about {eta / 60:.0f} min left"
        begins, ran = not ran, ran + work[number]
        console.print(f"run    {launch.label} ({number + 1} of {len(waiting)}{left})")
        if begins:
            console.print(f"       watch a run: ddpsched watch {launch.runs[0].run_dir}")
        if launch.is_lone:
            console.print("       no other arm here has its data and training, so its times are compared with nothing")
        yield launch, [each for process in launch.processes() for each in run_launch(process, flags)]


def _work(launches: Sequence[Launch]) -> list[int]:
    """Return the steps of each launch, as a later one may have fewer; 1 of each where some run whole epochs."""
    steps = [sum(run.steps or 0 for run in launch.runs) for launch in launches]
    return steps if all(run.steps for launch in launches for run in launch.runs) else [1] * len(launches)


def _say(launch: Launch, ended: Ended) -> None:
    """Print how the runs of a launch ended; a reason that all of them share, once."""
    reasons = {reason for _, reason in ended}
    for run, reason in ended:
        if reason is None:
            wall = "" if launch.interleaved else f" in {read_status(run.run_dir).get('wall_s') or 0:.0f} s"
            console.print(f"done   {run.run_dir}{wall}")
        elif len(reasons) > 1 or run is ended[0][0]:
            console.print(f"failed {run.run_dir}: {reason}", style="red")
        else:
            console.print(f"failed {run.run_dir}: likewise", style="red")


def _pair_test(runs: Sequence[RunConfig], took_s: float) -> None:
    """Measure whether two ranks on this machine slow each other, for a share of the time that the runs took.

    It is written to pair.json beside the runs, where they were ranks on one machine without GPUs.
    """
    here = [run for run in runs if run.executor.kind == "distributed" and read_status(run.run_dir)["state"] == "done"]
    if not here or not _on_processors(here[0]):
        return
    from experiments.benchmarks import pair

    seconds = min(pair.SECONDS, max(1.0, took_s * PAIR_SHARE / (4 * PAIR_ROUNDS)))
    name = here[0].model.name if here[0].model.name in pair.SHAPES else pair.Training().model
    found = pair.study_test(pair.Training(model=name), PAIR_ROUNDS, seconds)
    write_json(here[0].run_dir.parent / "pair.json", found)
    console.print(f"pair   {found['verdict']}")


def _on_processors(run: RunConfig) -> bool:
    facts = read_environment(run.run_dir)
    return bool(facts["device"] == facts["cpu"])


@app.command()
def main(
    study: Annotated[str, typer.Argument(help="TOML file with [base] and [grid]")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value words that override the study")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print what would run, and stop")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="run finished runs again")] = False,
    force: Annotated[bool, typer.Option("--force", help="use calibrations of another model or device")] = False,
    pair: Annotated[bool, typer.Option(help="measure whether ranks on this machine slow each other")] = True,
    on: Annotated[
        str, typer.Option(metavar="here|slurm|local", help="here, as a Slurm array, or as jobs on this machine")
    ] = "here",
    nodes: Annotated[int, typer.Option(help="machines of a distributed launch, for --on slurm")] = 1,
    slurm: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="an option of sbatch: time=60")] = None,
) -> None:
    """Run a study."""
    signal.signal(signal.SIGTERM, terminate)
    try:
        given = cluster_of(on, nodes, slurm or [])
        cluster = None if on == "here" else given
        code = sweep(
            study, overrides or [], dry_run=dry_run, overwrite=overwrite, force=force, pair=pair, cluster=cluster
        )
    except DdpschedError as error:
        console.print(f"error: {error}", style="red")
        code = 1
    except OSError as error:
        console.print(f"error: {visible(system_fault(error), lines=True)}", style="red")
        code = 1
    except KeyboardInterrupt:
        rest = "jobs go on, the same command waits for them" if on == "slurm" else "run the same command to go on"
        console.print(f"interrupted: finished runs stay, {rest}", style="red")
        code = 130
    raise typer.Exit(code)


if __name__ == "__main__":
    app()
