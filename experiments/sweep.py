"""Run a study: ``python -m experiments.sweep STUDY [key=value ...] [--dry-run] [--overwrite]``.

Every run is a process of its own, distributed ones under torchrun on a free
port. Finished runs are skipped, failed ones reported at the end and in the exit
code; Ctrl-C ends the running one and leaves the finished ones as they are.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ddpsched.config import RunConfig, dump
from ddpsched.errors import DdpschedError
from ddpsched.run_folder import read_status
from experiments.study import load_study

console = Console(highlight=False, soft_wrap=True)


def command(run: RunConfig, config_file: Path) -> list[str]:
    """What starts a run."""
    train = ["-m", "experiments.train", str(config_file), "--overwrite"]
    if run.executor.kind != "distributed":
        return [sys.executable, *train]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(run.world_size)]
    return [sys.executable, *launcher, *train]


def sweep(study: str, overrides: list[str], *, dry_run: bool = False, overwrite: bool = False) -> int:
    """Run what is not finished; exit code 0 only where every run is done."""
    runs = load_study(study, overrides)
    finished = [] if overwrite else [run for run in runs if read_status(run.run_dir)["state"] == "done"]
    waiting = [run for run in runs if run not in finished]
    for run in finished:
        console.print(f"skip   {run.run_dir} (done; --overwrite runs it again)")
    if dry_run:
        for run in waiting:
            console.print(f"would run {run.run_dir}: {' '.join(command(run, run.run_dir / 'config.toml'))}")
        return 0
    failed: dict[str, str] = {}
    begin = time.monotonic()
    for number, run in enumerate(waiting):
        eta = (time.monotonic() - begin) / number * (len(waiting) - number) if number else None
        left = "" if eta is None else f", about {eta / 60:.0f} min left"
        console.print(f"run    {run.run_dir} ({number + 1} of {len(waiting)}{left})")
        reason = _run(run)
        if reason is None:
            console.print(f"done   {run.run_dir} in {read_status(run.run_dir)['wall_s']:.0f} s")
        else:
            failed[str(run.run_dir)] = reason
            console.print(f"failed {run.run_dir}: {reason}", style="red")
    if failed:
        console.print(f"{len(failed)} of {len(runs)} runs failed: {', '.join(failed)}", style="red")
    return 1 if failed else 0


def _run(run: RunConfig) -> str | None:
    """Run one; None when it is done, else why not. Output goes to logs/launcher.log, its end is shown on failure."""
    (run.run_dir / "logs").mkdir(parents=True, exist_ok=True)
    config_file, log = run.run_dir / "config.toml", run.run_dir / "logs" / "launcher.log"
    (run.run_dir / "status.json").unlink(missing_ok=True)  # an earlier try's word is not this one's
    config_file.write_text(dump(run), encoding="utf-8")
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command(run, config_file), stdout=output, stderr=subprocess.STDOUT, env=_environ(run)
        )
        try:
            code = process.wait()
        except KeyboardInterrupt:
            _end(process)
            raise
    status = read_status(run.run_dir)
    if status["state"] == "done":
        return None
    tail = [
        line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.startswith("error:")
    ]
    return status.get("reason") or (tail[0] if tail else f"exit code {code}; see {log}")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """The terminal's Ctrl-C reached the ranks as well: let them leave, then make sure."""
    try:
        process.wait(timeout=30)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait()


def _environ(run: RunConfig) -> dict[str, str]:
    """One thread count for every arm, in every library that reads it."""
    return {**os.environ, "OMP_NUM_THREADS": str(run.executor.threads), "PYTHONUNBUFFERED": "1"}


def main(
    study: Annotated[str, typer.Argument(help="TOML file with [base] and [grid]")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value words that override the study")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what would run, and stop")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="run finished runs again")] = False,
) -> None:
    """Run a study."""
    try:
        code = sweep(study, overrides or [], dry_run=dry_run, overwrite=overwrite)
    except DdpschedError as error:
        console.print(f"error: {error}", style="red")
        code = 1
    except KeyboardInterrupt:
        console.print("interrupted: finished runs stay, run the same command to go on", style="red")
        code = 130
    raise typer.Exit(code)


if __name__ == "__main__":
    typer.run(main)
