"""Whether "done" is written last. ``python -m experiments.reliability.marked [--freeze]``.

Runs of two real ranks under torchrun end, and rank 0 kills itself by SIGKILL at one point of the end after another:
before and after each file is written and renamed. status.json may say "done" only where all else is complete and can be
read: the trained model, environment.json, every row of records.parquet, the ledger and the evaluation.
"""

import tempfile
from pathlib import Path
from typing import Annotated

import pyarrow.parquet as pq
import typer
from safetensors import safe_open

from ddpsched.records import RECORDS, read_json
from ddpsched.recovery.audit import audit
from ddpsched.run_folder import read_status
from experiments.reliability.findings import Finding, Freeze, report
from experiments.reliability.real_runs import ended, start, write_config

PLANTED = "experiments.reliability.planted"
RANKS, STEPS, LIMIT_S = 2, 3, 120.0
# in their order; before each of them rank 0 dies. Renames are counted: the first two are of the run's beginning
POINTS = {
    "before the model is saved": "ddpsched.training.distributed:DistributedExecutor.save_model",
    "before environment.json's rename": "ddpsched.records:os.replace 3",
    "before records.parquet": "ddpsched.run_loop:compact",
    "while records.parquet is written": "pyarrow.parquet:write_table",
    "before records.parquet's rename": "ddpsched.records:os.replace 4",
    "after records.parquet": "ddpsched.run_folder:RunFolder.done",
    "before status.json's rename": "ddpsched.records:os.replace 5",
    "after status.json": "ddpsched.run_lock:RunLock.give_back",
    "before ranks part": "ddpsched.training.group_exchange:GroupExchange.part",
}
LATE = ("after status.json", "before ranks part")
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def missing(folder: Path) -> list[str]:
    """Return what a run's folder lacks or holds damaged."""
    faults: list[str] = []
    for name, read in (
        ("", lambda path: faults.extend(audit(path).faults)),
        ("environment.json", lambda path: read_json(path)["starts"]),
        (RECORDS, lambda path: _exactly(pq.read_table(path).num_rows, RANKS * STEPS)),
        ("evaluations.jsonl", lambda path: _exactly(path.read_bytes().count(b"\n"), 1)),
        ("model/model.safetensors", lambda path: safe_open(path, framework="pt").keys()),
    ):
        try:
            read(folder / name)
        except Exception as error:  # whatever keeps a reader from reading it
            faults.append(f"{name or 'the ledger'}: {error!r}")
    return faults


def _exactly(found: int, wanted: int) -> None:
    if found != wanted:
        raise ValueError(f"{found} rows in place of {wanted}")


def killed_at(folder: Path, number: int, place: str) -> tuple[str, list[str]]:
    """Return the state of a run whose rank 0 died at this place, and what is missing of it."""
    name = f"run-{number}"
    config = write_config(folder, ranks=RANKS, steps=STEPS)
    launcher = start(config, name, RANKS, module=PLANTED, env={"DDPSCHED_PLANT": f"0 kill {place}"})
    if ended(launcher, LIMIT_S) == 0:
        raise RuntimeError(f"{place} was not reached, so nothing was killed: see POINTS")
    run = folder / "runs" / name
    return str(read_status(run)["state"]), missing(run)


@app.command()
def main(
    points: Annotated[list[str] | None, typer.Option("--point", help="one of them; all else")] = None,
    freeze: Freeze = False,
) -> None:
    """Kill rank 0 at each point of the end of a run."""
    states, faults = dict[str, str](), list[str]()
    with tempfile.TemporaryDirectory(prefix="ddpsched-marked-") as folder:
        for number, point in enumerate(points or POINTS):
            state, lacks = killed_at(Path(folder), number, POINTS[point])
            states[point] = state
            if state == "done" and lacks:
                faults.append(f"{point}: done, but {'; '.join(lacks)}")
            if (state == "done") != (point in LATE):
                faults.append(f"{point}: {state}")
            print(f"{point}: {state}, {len(lacks)} things missing", flush=True)
    for fault in faults:
        print(f"FAULT {fault}")
    finding = Finding(
        "marked",
        "Success is a marker written last: rank 0 killed at each point of the end",
        "done only where all else is complete",
        f"{len(states)} points, {len(faults)} faults",
        not faults,
        "python -m experiments.reliability.marked" + "".join(f' --point "{point}"' for point in points or ()),
        {"states": states, "faults": faults},
    )
    raise typer.Exit(report(finding, freeze))


if __name__ == "__main__":
    app()
