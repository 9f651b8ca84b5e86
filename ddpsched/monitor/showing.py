"""ddpsched runs show: one run, from its first step to its last."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ddpsched.decode import decode_json
from ddpsched.errors import DataError
from ddpsched.monitor.durations import clock, local_time
from ddpsched.monitor.follower import Follower
from ddpsched.monitor.found import FoundRun, find_run
from ddpsched.monitor.summary import COLUMNS, Arrays, arrays_of, summarise
from ddpsched.monitor.view import view
from ddpsched.monitor.watching import by_tokens
from ddpsched.records import RECORDS, StepRecord, read_json
from ddpsched.regular_file import check_regular, read_regular
from ddpsched.terminal import sized_console
from ddpsched.visible_text import visible


def show_run(folder: Path, as_json: bool) -> None:
    """Print a run's state and means. Raises DataError where the folder is no run's, or its records are damaged."""
    run = find_run(folder)
    arrays, notes = _records(folder, ended=run.state != "running")
    summary = None if arrays is None else summarise(arrays, by_tokens(folder))
    facts, evaluation = _facts(folder), _last_evaluation(folder)
    if as_json:
        values = {**asdict(run), "folder": str(folder), "name": run.name, "evaluation": evaluation, **facts}
        means = None if summary is None else asdict(summary)
        print(json.dumps({**values, "summary": means, "notes": notes}, indent=2, default=str))
        return
    console = sized_console()
    console.print(view("\n".join(_lines(run, facts, evaluation)), notes, summary, console))


def _lines(run: FoundRun, facts: dict[str, Any], evaluation: dict[str, Any] | None) -> Iterator[str]:
    yield f"{run.name}: {run.state}, {'-' if run.steps is None else f'{run.steps:,}'} steps"
    if run.reason:
        yield visible(run.reason)
    yield f"policy {run.policy or '-'}, {run.mode or '-'}, {run.world_size or '-'} ranks, seed {run.seed}"
    yield visible(f"on {facts['device'] or '-'}; data: {facts['data'] or '-'}")
    yield f"started {local_time(run.started)}, took {clock(run.wall_s)}"
    if evaluation is not None:
        shown = [f"{name} {evaluation[name]:.4f}" for name in ("loss", "accuracy") if _is_number(evaluation.get(name))]
        yield f"evaluated after step {evaluation.get('step')}: {', '.join(shown) or '-'}"
    for name, state in (run.sinks or {}).items():
        yield visible(f"{name}: {state}")
    yield ""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _facts(folder: Path) -> dict[str, Any]:
    """Return the device and the data of environment.json, where there is one."""
    path = folder / "environment.json"
    found = read_json(path, "delete this file to see the rest, or run it again") if path.exists() else {}
    return {key: found.get(key) for key in ("device", "data")}


def _last_evaluation(folder: Path) -> dict[str, Any] | None:
    """Return the last whole line of evaluations.jsonl; None where there is none."""
    try:
        lines = read_regular(folder / "evaluations.jsonl").split(b"\n")[:-1]
        value = decode_json(lines[-1]) if lines else None
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DataError(f"{folder / 'evaluations.jsonl'}: its last line is no JSON ({error})") from None
    return value if isinstance(value, dict) else None


def _records(folder: Path, ended: bool) -> tuple[Arrays | None, list[str]]:
    """Return the columns of all records, None without any, and what was left out of them."""
    if (folder / RECORDS).exists():
        return _of_parquet(folder / RECORDS), []
    follower, records = Follower(folder), list[StepRecord]()
    for piece in follower.read_all(ended):
        records += piece
    notes = ["no records"] if not records else []
    if number := follower.num_left_out:
        notes.append(f"{number:,} line{'s' * (number > 1)} left out; the first is {follower.first_left_out}")
    return (arrays_of(records) if records else None), notes


def _of_parquet(path: Path) -> Arrays | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_regular(path)
    try:
        table = pq.read_table(path, page_checksum_verification=True)
        if missing := [name for name in COLUMNS[:7] if name not in table.column_names]:
            raise DataError(f"{path}: records lack the columns {', '.join(missing)}; run it again")
        absent = np.full(len(table), np.nan)
        arrays = {
            name: table[name].to_numpy().astype(float) if name in table.column_names else absent for name in COLUMNS
        }
        has_loss = "loss" in table.column_names
        there = table["loss"].is_valid().to_numpy() if has_loss else np.zeros(len(table), dtype=bool)
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: cannot be read ({str(error)[:200]}); run it again") from None
    return {**arrays, "loss_there": there} if len(table) else None
