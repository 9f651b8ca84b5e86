"""Start a launch on this machine, or this machine's part of one, and wait for it.

Distributed runs start under torchrun: on one machine at a free port, on several at the first one's address. What a
launch prints is added to its runs' logs; why a run is not done is read from its status and from that.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from ddpsched.config import RunConfig, dump
from ddpsched.errors import DataError
from ddpsched.launcher_log import launcher_log
from ddpsched.own_folder import check_own
from ddpsched.processes import ends_with_its_parent
from ddpsched.run_folder import read_status
from ddpsched.run_lock import HELD, refusal
from ddpsched.shortage import no_room, system_fault
from ddpsched.terminal import plain_console
from ddpsched.visible_text import visible
from experiments.launch_progress import StepLine
from experiments.launches import Launch

console = plain_console(soft_wrap=True)
IN_TURN = " runs in turn keep "  # of the line that says how much memory their models take
MEETING_S = 120  # for the machines of a launch to meet; a scheduler starts them within seconds of each other
NOT_MET = ("DistStoreError", "DistNetworkError", "Rendezvous")  # in torchrun's errors
Ended = list[tuple[RunConfig, str | None]]  # runs, each with None where it is done, else the reason


@dataclass(frozen=True)
class Node:
    """One machine of those that a launch starts on.

    Attributes:
        rank: its number.
        count: of the machines.
        address: ``host:port`` of machine 0, where torchrun's agents meet.
        key: of the files of this start, and the same on all machines; empty for this process's number.
    """

    rank: int = 0
    count: int = 1
    address: str = ""
    key: str = ""


HERE = Node()


def command(launch: Launch, files: Sequence[Path], flags: Sequence[str] = (), node: Node = HERE) -> list[str]:
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
    return [sys.executable, "-m", "torch.distributed.run", *torchrun_options(run.world_size, node), *module]


def torchrun_options(world_size: int, node: Node = HERE) -> list[str]:
    """Return torchrun's options for this machine's ranks, of ``world_size`` in all."""
    if node.count == 1:
        return ["--standalone", "--nproc-per-node", str(world_size)]
    # static, as c10d numbers the machines by itself, and looks up addresses by host name
    meeting = ["--rdzv-backend", "static", "--rdzv-endpoint", node.address, "--rdzv-id", node.key]
    meeting += ["--rdzv-conf", f"timeout={MEETING_S}", "--node-rank", str(node.rank), "--nnodes", str(node.count)]
    return [*meeting, "--nproc-per-node", str(world_size // node.count)]


def config_path(run: RunConfig, node: Node = HERE) -> Path:
    """Return the path of a run's config while it runs: beside its folder, which the run creates when it can start.

    The name contains this process's id, or that of its start and machine, as another sweep may run the same study.
    """
    start = f"{node.key}.{node.rank}" if node.key else os.getpid()
    return run.run_dir.with_name(f".{run.name}.{start}.toml")


def run_launch(launch: Launch, flags: Sequence[str] = (), node: Node = HERE) -> Ended:
    """Start a launch and wait for it; return its runs, each with None where it is done, else the reason.

    Machine 0 alone looks at the folders and at what became of the runs; the others return nothing, and raise OSError.
    """
    if node.rank > 0:
        _launch(launch, flags, node)
        return []
    try:
        return _run_launch(launch, flags, node)
    except OSError as error:  # a full disk, for example: other launches may still be done
        return [(run, visible(system_fault(error, run.run_dir), lines=True)) for run in launch.runs]


def _run_launch(launch: Launch, flags: Sequence[str], node: Node) -> Ended:
    if any(held := [refusal(run.run_dir) for run in launch.runs]):
        others = next(reason for reason in held if reason is not None)
        return [(run, reason or f"not started: {others}") for run, reason in zip(launch.runs, held, strict=True)]
    before = [_left(run) for run in launch.runs]
    code, printed, unlogged = _launch(launch, flags, node)
    errors = [line.removeprefix("error: ") for line in printed.splitlines() if line.startswith("error:")]
    if (refused := next((error for error in errors if HELD in error), None)) is not None:
        return [(run, refused) for run in launch.runs]
    ended = f"exit code {code}; "
    return [
        (run, _reason(run, status, printed, node, ended + (unlogged or f"see {launcher_log(run.run_dir)}")))
        for run, status in zip(launch.runs, before, strict=True)
    ]


def _left(run: RunConfig) -> dict[str, Any] | None:
    """Return the status that an earlier run has left; None for a damaged one, which this run writes anew."""
    try:
        return read_status(run.run_dir)
    except DataError:
        return None


def _reason(run: RunConfig, before: dict[str, Any] | None, printed: str, node: Node, ended: str) -> str | None:
    """Return why a run of a launch that has ended is not done, ``ended`` where nothing says so; None where it is."""
    status = read_status(run.run_dir)
    if status == before:
        status = {"state": "absent"}  # it ended before it wrote its status
    if status["state"] == "done":
        return None
    beginnings = (f"failed: {run.run_dir}: ", "error: ")  # of this run among several, of the whole launch
    lines = printed.splitlines()
    named = [line.removeprefix(start) for start in beginnings for line in lines if line.startswith(start)]
    return status.get("reason") or next(iter(named), not_met(printed, node) or ended)


def not_met(printed: str, node: Node) -> str | None:
    """Return that the machines did not meet, where torchrun printed so."""
    if node.count == 1 or not any(word in printed for word in NOT_MET):
        return None
    return (
        f"its {node.count} machines did not meet at {node.address} within {MEETING_S} s: each must reach the first by "
        "that name, and the port must be free and open there; see logs/launcher*.log"
    )


def _wait(process: subprocess.Popen[bytes], launch: Launch, output: Path) -> int:
    """Return the exit code; print the line on memory as soon as it is in the ``output``, and how far the steps are."""
    awaited = launch.interleaved
    with StepLine(console, launch.runs[-1].run_dir) as steps:  # of runs in turn, the last is the last to end a step
        while True:
            if awaited:
                lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
                if said := next((line for line in lines if IN_TURN in line and not line.startswith("error:")), None):
                    console.print(f"       {said}")
                    awaited = False
            try:
                return process.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                steps.look()


def _launch(launch: Launch, flags: Sequence[str], node: Node) -> tuple[int, str, str]:
    """Start a launch and wait for it; return its exit code and output, which is added to each run's launcher.log.

    Returns at last why a log has not all of the output; empty where they have. Until the launch ends, its output lies
    beside the folders: another run may have taken one at the same moment.
    """
    files = [config_path(run, node) for run in launch.runs]
    output = files[0].with_suffix(".log")
    files[0].parent.mkdir(parents=True, exist_ok=True)
    for path in (*(run.run_dir for run in launch.runs), *files, output):
        check_own(path)
    unlogged = ""
    with ExitStack() as stack:
        for path in (*files, output):
            stack.callback(path.unlink, missing_ok=True)
        for run, file in zip(launch.runs, files, strict=True):
            file.write_text(dump(run), encoding="utf-8")
        log = stack.enter_context(output.open("w+b"))
        try:
            process = subprocess.Popen(
                command(launch, files, flags, node),
                stdout=log,
                stderr=subprocess.STDOUT,
                env=_environ(launch.runs[0]),
                preexec_fn=ends_with_its_parent(),  # a sweep that is killed leaves no run behind
            )
            try:
                code = _wait(process, launch, output)
            except KeyboardInterrupt as interrupt:
                _end(process, interrupted=not isinstance(interrupt, Terminated))
                raise
        finally:
            log.seek(0)
            printed = log.read().decode("utf-8", errors="replace")
            if not printed:  # perhaps there was no room even for the text of an error
                unlogged = no_room(output.parent) or ""
            if HELD not in printed:
                unlogged = unlogged or _add_to_logs(
                    [launcher_log(run.run_dir, node.rank) for run in launch.runs], printed
                )
    return code, printed, unlogged


def _add_to_logs(logs: Sequence[Path], printed: str) -> str:
    """Add what a launch printed to its logs; print and return why one could not have it, as the launch has ended."""
    unlogged = ""
    for path in logs:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as copy:
                copy.write(printed)
        except OSError as error:
            unlogged = visible(f"not all of its output is in {path}: {system_fault(error, path)}", lines=True)
            console.print(f"       {unlogged}", style="red")
    return unlogged


class Terminated(KeyboardInterrupt):
    """SIGTERM: treated as Ctrl-C, but only this process received it."""


def terminate(number: int, frame: FrameType | None) -> None:
    """Raise Terminated, for a signal."""
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
