"""Real runs under torchrun, killed again and again: is the ledger exact, and the end the same as without a kill?

``python -m experiments.reliability.kills [--count 10] [--seed 0] [--ranks 2] [--resize] [--freeze]``

A run of a tiny model with a checkpoint every few steps is killed by SIGKILL at random moments, one in three of them
while a checkpoint is being written, and started again by the same command, until it is done. Killed is a rank or the
launcher, drawn at random. Then its ledger is audited, and its weights, ledger, evaluations and losses are compared with
those of the same run without a kill, to the last bit. ``--resize``: each start has another number of ranks, 2 to 4;
then only the audit counts, as sums over other ranks round differently. Printed is a line a kill, and how many runs were
exact.
"""

import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Annotated

import typer

from ddpsched.processes import Process
from ddpsched.records import read_lines
from ddpsched.recovery.audit import audit
from ddpsched.recovery.ledger import LEDGER
from ddpsched.run_folder import read_status
from ddpsched.terminal import plain_console
from experiments.reliability.findings import Finding, Freeze, report
from experiments.reliability.real_runs import ranks_of, start, still_there

CONFIG = """
outputs = "{outputs}"
steps = 120
global_batch = 12
world_size = {ranks}
seed = {seed}
[executor]
kind = "distributed"
timeout_s = 30.0
[data]
size = 500
held_out = 0.02
[policy]
{policy}
[sync]
kind = "{sync}"
bucket_mb = {bucket}
[train]
checkpoint_every = {every}
learning_rate = 1e-3
eval_every = 25
"""
POLICIES = (
    'kind = "balanced"\nmax_microbatches = 2',
    'kind = "minmax"\nprefetch = 12',
    'kind = "packed"',
    'kind = "pool"\nmax_tokens_for_batch = 150\npool_size = 16',
)
SYNCS, BUCKETS = ("ddp", "bucketed"), (25.0, 0.05)  # MiB: the model in one message, or in several
KILLS_A_RUN = 5
LIMIT_S, ENDED_S = 120.0, 5.0  # of a start; until no process is left after a kill
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
console = plain_console(soft_wrap=True)


@dataclass
class Outcome:
    """The ends of all runs: ``kills`` survived, and a message for each that was not exact."""

    runs: int = 0
    kills: int = 0
    faults: list[str] = field(default_factory=list)


def kill_once(process: subprocess.Popen[bytes], folder: Path, draw: random.Random) -> str | None:
    """Kill a rank or the launcher at a random moment; return which and when, None where the run ended before."""
    while_writing, victim = draw.random() < 1 / 3, draw.choice(("rank", "launcher"))
    delay, deadline = draw.uniform(0.0, 1.5), time.monotonic() + LIMIT_S
    size = _size(folder / LEDGER)
    while process.poll() is None and _size(folder / LEDGER) == size:  # it is starting
        if time.monotonic() > deadline:
            raise RuntimeError(f"{folder} made no step within {LIMIT_S:.0f} s; see {folder.name}.log")
        time.sleep(0.01)
    if while_writing:
        while process.poll() is None and not list((folder / "checkpoints").glob("*.part")):
            time.sleep(0.0005)
    else:
        time.sleep(delay)
    ranks = ranks_of(process.pid)
    if process.poll() is not None or not ranks:
        return None
    rank = draw.choice(sorted(ranks))
    processes = [Process.of(pid) for pid in ranks.values()]
    try:
        os.kill(ranks[rank] if victim == "rank" else process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return None
    process.wait(LIMIT_S)
    left = still_there(processes, ENDED_S)
    if left:
        raise RuntimeError(f"{len(left)} ranks lived {ENDED_S:.0f} s after {victim} was killed")
    who = f"rank {rank}" if victim == "rank" else "launcher"
    return f"{who}{' while a checkpoint was written' if while_writing else ''}"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def finish(config: Path, name: str, ranks: int) -> None:
    """Run to the end. Raises RuntimeError where it does not end well."""
    code = start(config, name, ranks).wait(LIMIT_S)
    state = read_status(config.parent / "runs" / name)
    if code != 0 or state["state"] != "done":
        raise RuntimeError(f"{name} ended with exit code {code}, {state}")


def end_state(folder: Path) -> dict[str, str]:
    """Return digests of what a run ends with: weights, ledger, evaluations, and the loss of each step and rank."""
    losses = [(row["step"], row["rank"], row["loss"], row["plan_hash"]) for row in read_lines(folder)]
    return {
        "evaluations": _digest((folder / "evaluations.jsonl").read_bytes()),
        "weights": _digest((folder / "model" / "model.safetensors").read_bytes()),
        "ledger": _digest((folder / LEDGER).read_bytes()),
        "losses": _digest(repr(losses).encode()),
    }


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=8).hexdigest()


def one_run(outputs: Path, number: int, ranks: int, kills: int, resize: bool, outcome: Outcome) -> None:
    """Kill a run up to ``kills`` times, let it end, and compare it."""
    draw = random.Random(number)
    policy, sync, bucket, every = draw.choice(POLICIES), draw.choice(SYNCS), draw.choice(BUCKETS), draw.randint(1, 6)
    config, values = outputs / "config.toml", {"policy": policy, "sync": sync, "bucket": bucket, "every": every}
    config.write_text(CONFIG.format(outputs=outputs, ranks=ranks, seed=number, **values))
    folder, outcome.runs = outputs / "runs" / "killed", outcome.runs + 1
    label = f"run {number} ({policy.splitlines()[0]}, {sync} of {bucket} MiB, every {every})"
    for _ in range(kills):
        size = draw.randint(2, 4) if resize else ranks
        killed = kill_once(start(config, "killed", size), folder, draw)
        if killed is None:
            break
        outcome.kills += 1
        console.print(f"{label}: killed {killed} of {size}, {_steps(folder)} steps done")
    if read_status(folder)["state"] != "done":
        finish(config, "killed", draw.randint(2, 4) if resize else ranks)
    outcome.faults += [f"{label}: {fault}" for fault in audit(folder).faults]
    if not resize:
        finish(config, "whole", ranks)
        apart = {key for key, value in end_state(folder).items() if value != end_state(outputs / "runs" / "whole")[key]}
        outcome.faults += (
            [f"{label}: {', '.join(sorted(apart))} differ from the run that was not killed"] if apart else []
        )
    shutil.rmtree(outputs / "runs")


def _steps(folder: Path) -> int:
    path = folder / LEDGER
    return path.read_bytes().count(b"\n") if path.exists() else 0


@app.command()
def main(
    count: Annotated[int, typer.Option(min=1, help="kills in all")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="number of the first run")] = 0,
    ranks: Annotated[int, typer.Option(min=2, max=4)] = 2,
    resize: Annotated[bool, typer.Option("--resize", help="another number of ranks at each start")] = False,
    freeze: Freeze = False,
) -> None:
    """Kill real runs, start them again, and compare their ends."""
    outcome, number, begin = Outcome(), seed, time.monotonic()
    while outcome.kills < count:
        with tempfile.TemporaryDirectory() as folder:
            one_run(Path(folder), number, ranks, min(KILLS_A_RUN, count - outcome.kills), resize, outcome)
        number += 1
    for fault in outcome.faults:
        console.print(f"FAULT {fault}")
    words = f"--count {count} --seed {seed} --ranks {ranks}" + " --resize" * resize
    finding = Finding(
        f"kills_{'resized' if resize else f'{ranks}_ranks'}",
        "Real SIGKILLs of torchrun runs, " + ("another number of ranks at each start" if resize else f"{ranks} ranks"),
        "ledger exact" + ", end state equal" * (not resize),
        f"{outcome.kills} kills in {outcome.runs} runs, {len(outcome.faults)} faults",
        not outcome.faults,
        f"python -m experiments.reliability.kills {words}",
        {"faults": outcome.faults, "seconds": round(time.monotonic() - begin)},
    )
    raise typer.Exit(report(finding, freeze))


if __name__ == "__main__":
    app()
