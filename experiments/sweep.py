"""Run a study: ``python -m experiments.sweep STUDY [key=value ...] [--dry-run] [--overwrite] [--force]``.

All arms of a setting and seed start together and take turns step by step, so that their times can be compared; with
``compare.how=apart`` each run is a process of its own. Distributed ones start under torchrun on a free port. What is
finished is skipped, failed runs are reported at the end and in the exit code; Ctrl-C ends what is running and leaves
the finished runs as they are.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from ddpsched.config import RunConfig, dump, load
from ddpsched.errors import ConfigError, DataError, DdpschedError, RunExistsError
from ddpsched.own_folder import check_own
from ddpsched.processes import ends_with_its_parent
from ddpsched.records import read_json, write_json
from ddpsched.run_folder import read_status
from ddpsched.run_lock import HELD, refusal
from ddpsched.terminal import plain_console
from experiments.launches import Launch, launches
from experiments.study import load_study

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
console = plain_console(soft_wrap=True)
IN_TURN = " runs in turn keep "  # of the line that says how much memory their models take
PAIR_SHARE, PAIR_ROUNDS = 0.1, 3  # of the time of a study; rounds of alone, pair, pair, alone


def command(launch: Launch, files: Sequence[Path], flags: Sequence[str] = ()) -> list[str]:
    """Return the command line that starts a launch. ``files``: the configs of its runs; ``flags``: such as --force."""
    run = launch.runs[0]
    module = ["-m", "experiments.interleaved" if launch.interleaved else "experiments.train", *map(str, files)]
    if launch.interleaved:
        module += ["--block", str(launch.compare.block)]
    if launch.how != "apart":
        module.append(f"--launch={json.dumps(launch.about)}")
    if launch.how != "apart" and "--overwrite" not in flags:  # all of its runs begin anew, also those that are done
        module.append("--overwrite")
    module += flags
    if run.executor.kind != "distributed":
        return [sys.executable, *module]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(run.world_size)]
    return [sys.executable, *launcher, *module]


def sweep(
    study: str,
    overrides: list[str],
    *,
    dry_run: bool = False,
    overwrite: bool = False,
    force: bool = False,
    pair: bool = True,
) -> int:
    """Run the launches of a study that are not finished; return 0 where all are done, else 1.

    ``pair``: measure afterwards whether ranks on this machine slow each other, where the study has such ranks.
    Raises ConfigError for a study that is not valid, RunExistsError for a finished run of another config.
    """
    found = load_study(study, overrides)
    everything = launches(found)
    finished = [] if overwrite else [launch for launch in everything if _is_done(launch)]
    waiting = [launch for launch in everything if launch not in finished]
    flags = [flag for flag, asked in (("--overwrite", overwrite), ("--force", force)) if asked]
    for launch in finished:
        console.print(f"skip   {launch.label} (done; --overwrite runs it again)")
    if dry_run:
        for process in [process for launch in waiting for process in launch.processes()]:
            files = [config_path(run) for run in process.runs]
            console.print(f"would run {process.label}: {' '.join(command(process, files, flags))}")
        return 0
    failed: dict[str, str] = {}
    begin = time.monotonic()
    for number, launch in enumerate(waiting):
        eta = (time.monotonic() - begin) / number * (len(waiting) - number) if number else None
        left = "" if eta is None else f", about {eta / 60:.0f} min left"
        console.print(f"run    {launch.label} ({number + 1} of {len(waiting)}{left})")
        if launch.is_lone:
            console.print("       no other arm has its data and training: its times are compared with nothing")
        ended = [each for process in launch.processes() for each in _run(process, flags)]
        failed |= {str(run.run_dir): reason for run, reason in ended if reason is not None}
        _say(launch, ended)
    if pair:
        _pair_test([run for launch in waiting for run in launch.runs], time.monotonic() - begin)
    if failed:
        console.print(f"{len(failed)} of {len(found.runs)} runs failed: {', '.join(failed)}", style="red")
    return 1 if failed else 0


def _is_done(launch: Launch) -> bool:
    """Return whether all runs of a launch are finished, and as one: times of two launches are not compared.

    Raises RunExistsError for a finished run of another config.
    """
    if not all([_is_finished(run) for run in launch.runs]):
        return False
    if launch.how == "apart":
        return True
    facts = (read_json(run.run_dir / "environment.json") for run in launch.runs)
    return len({(each.get("launch") or {}).get("id") for each in facts}) == 1


def _say(launch: Launch, ended: Sequence[tuple[RunConfig, str | None]]) -> None:
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
    facts = read_json(run.run_dir / "environment.json")
    return bool(facts["device"] == facts["cpu"])


def _is_finished(run: RunConfig) -> bool:
    """Return whether this run is done. Raises RunExistsError where a finished one of its name has another config."""
    if read_status(run.run_dir)["state"] != "done":
        return False
    try:
        stored, wanted = load(run.run_dir / "config.toml").model_dump(), run.model_dump()
    except ConfigError as error:
        fault = str(error).splitlines()[0].partition(": ")[2]
        raise RunExistsError(
            f"{run.run_dir} holds a finished run whose config this version does not read ({fault}); give another "
            "study=..., or --overwrite to run it again"
        ) from None
    differing = [
        f"{key}: {was} there, {now} now"
        for table in stored
        if table not in ("outputs", "log")  # the same folder may be spelled in two ways; sinks change nothing
        for key, was, now in _differences(table, stored[table], wanted[table])
    ]
    if differing:
        raise RunExistsError(
            f"{run.run_dir} holds a finished run of another config ({'; '.join(differing)}); "
            "give another study=..., or --overwrite to run it again"
        )
    return True


def _differences(key: str, was: object, now: object) -> list[tuple[str, object, object]]:
    if isinstance(was, dict) and isinstance(now, dict):
        return [each for inner in was for each in _differences(f"{key}.{inner}", was[inner], now.get(inner))]
    return [] if was == now else [(key, was, now)]


def config_path(run: RunConfig) -> Path:
    """Return the path of a run's config while it runs: beside its folder, which the run creates when it can start.

    The name contains this process's id, as another sweep may run the same study.
    """
    return run.run_dir.with_name(f".{run.name}.{os.getpid()}.toml")


def _run(launch: Launch, flags: Sequence[str] = ()) -> list[tuple[RunConfig, str | None]]:
    """Start a launch and wait for it; return its runs, each with None where it is done, else the reason."""
    if any(held := [refusal(run.run_dir) for run in launch.runs]):
        others = next(reason for reason in held if reason is not None)
        return [(run, reason or f"not started: {others}") for run, reason in zip(launch.runs, held, strict=True)]
    before = [_left(run) for run in launch.runs]
    code, printed = _launch(launch, flags)
    errors = [line.removeprefix("error: ") for line in printed.splitlines() if line.startswith("error:")]
    if (refused := next((error for error in errors if HELD in error), None)) is not None:
        return [(run, refused) for run in launch.runs]
    return [(run, _reason(run, status, code, printed)) for run, status in zip(launch.runs, before, strict=True)]


def _left(run: RunConfig) -> dict[str, Any] | None:
    """Return the status that an earlier run has left; None for a damaged one, which this run writes anew."""
    try:
        return read_status(run.run_dir)
    except DataError:
        return None


def _reason(run: RunConfig, before: dict[str, Any] | None, code: int, printed: str) -> str | None:
    """Return why a run of a launch that has ended is not done; None where it is."""
    status = read_status(run.run_dir)
    if status == before:
        status = {"state": "absent"}  # it ended before it wrote its status
    if status["state"] == "done":
        return None
    beginnings = (f"failed: {run.run_dir}: ", "error: ")  # of this run among several, of the whole launch
    lines = printed.splitlines()
    named = [line.removeprefix(start) for start in beginnings for line in lines if line.startswith(start)]
    return status.get("reason") or next(iter(named), f"exit code {code}; see {_launcher_log(run)}")


def _wait(process: subprocess.Popen[bytes], output: Path | None) -> int:
    """Return the exit code; print the line on memory as soon as it is in the ``output``."""
    while output is not None:
        lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
        if said := next((line for line in lines if IN_TURN in line and not line.startswith("error:")), None):
            console.print(f"       {said}")
            break
        try:
            return process.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            continue
    return process.wait()


def _launch(launch: Launch, flags: Sequence[str]) -> tuple[int, str]:
    """Start a launch and wait for it; return its exit code and output, which is added to each run's launcher.log.

    Until it ends the output lies beside the folders: another run may have taken one at the same moment.
    """
    files = [config_path(run) for run in launch.runs]
    output = files[0].with_suffix(".log")
    files[0].parent.mkdir(parents=True, exist_ok=True)
    for path in (*(run.run_dir for run in launch.runs), *files, output):
        check_own(path)
    for run, file in zip(launch.runs, files, strict=True):
        file.write_text(dump(run), encoding="utf-8")
    with output.open("w+b") as log:
        try:
            process = subprocess.Popen(
                command(launch, files, flags),
                stdout=log,
                stderr=subprocess.STDOUT,
                env=_environ(launch.runs[0]),
                preexec_fn=ends_with_its_parent(),  # a sweep that is killed leaves no run behind
            )
            try:
                code = _wait(process, output if launch.interleaved else None)
            except KeyboardInterrupt as interrupt:
                _end(process, interrupted=not isinstance(interrupt, Terminated))
                raise
        finally:
            for file in files:
                file.unlink(missing_ok=True)
            log.seek(0)
            printed = log.read().decode("utf-8", errors="replace")
            if HELD not in printed:
                for run in launch.runs:
                    _launcher_log(run).parent.mkdir(parents=True, exist_ok=True)
                    with _launcher_log(run).open("a", encoding="utf-8") as copy:
                        copy.write(printed)
            output.unlink()
    return code, printed


def _launcher_log(run: RunConfig) -> Path:
    return run.run_dir / "logs" / "launcher.log"


class Terminated(KeyboardInterrupt):
    """SIGTERM: treated as Ctrl-C, but only this process received it."""


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


def _end(process: "subprocess.Popen[bytes]", interrupted: bool) -> None:
    """Let a run end between two steps, or kill it after 40 s; ``interrupted``: a terminal's Ctrl-C has reached it."""
    if not interrupted:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(timeout=40)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait()


def _environ(run: RunConfig) -> dict[str, str]:
    """Return the environment of a run: one thread count for all arms, in each library that reads it."""
    return {**os.environ, "OMP_NUM_THREADS": str(run.executor.threads), "PYTHONUNBUFFERED": "1"}


@app.command()
def main(
    study: Annotated[str, typer.Argument(help="TOML file with [base] and [grid]")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value words that override the study")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print what would run, and stop")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="run finished runs again")] = False,
    force: Annotated[bool, typer.Option("--force", help="use calibrations of another model or device")] = False,
    pair: Annotated[bool, typer.Option(help="measure whether ranks on this machine slow each other")] = True,
) -> None:
    """Run a study."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        code = sweep(study, overrides or [], dry_run=dry_run, overwrite=overwrite, force=force, pair=pair)
    except DdpschedError as error:
        console.print(f"error: {error}", style="red")
        code = 1
    except OSError as error:
        console.print(f"error: {error.filename or 'file system'}: {error.strerror or error}", style="red")
        code = 1
    except KeyboardInterrupt:
        console.print("interrupted: finished runs stay, run the same command to go on", style="red")
        code = 130
    raise typer.Exit(code)


if __name__ == "__main__":
    app()
