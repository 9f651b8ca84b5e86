"""ddpsched runs show: one run, from its first step to its last."""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ddpsched.decode import decode_json
from ddpsched.errors import AGAIN, DataError
from ddpsched.monitor.durations import clock, local_time
from ddpsched.monitor.follower import Follower
from ddpsched.monitor.found import FoundRun, find_run
from ddpsched.monitor.parquet import read_parquet
from ddpsched.monitor.summary import Arrays, arrays_of, summarise
from ddpsched.monitor.view import view
from ddpsched.monitor.watching import by_tokens
from ddpsched.monitor.whole_steps import WholeSteps
from ddpsched.records import RECORDS, StepRecord, read_json
from ddpsched.regular_file import read_regular
from ddpsched.terminal import sized_console
from ddpsched.visible_text import visible


def show_run(folder: Path, as_json: bool) -> None:
    """Print a run's state and means. Raises DataError where the folder is no run's, or its records are damaged."""
    run = find_run(folder)
    arrays, notes = _records(folder, ended=run.state != "running")
    summary = None if arrays is None else summarise(arrays, by_tokens(folder))
    if summary is not None:
        run = replace(run, steps=summary.last + 1)
    facts, evaluation = _facts(folder), _last_evaluation(folder)
    if as_json:
        values = {**asdict(run), "folder": str(folder), "name": run.name, "evaluation": evaluation, **facts}
        means = None if summary is None else asdict(summary)
        print(json.dumps({**values, "summary": means, "notes": notes}, indent=2, default=str))
        return
    console = sized_console()
    console.print(view("\n".join(_lines(run, facts, evaluation)), notes, summary, console))


def _lines(run: FoundRun, facts: dict[str, Any], evaluation: dict[str, Any] | None) -> Iterator[str]:
    if not run.began:
        yield f"{run.name}: never began"
        yield visible(run.reason or "")
        return
    yield f"{run.name}: {run.state}, {'-' if run.steps is None else f'{run.steps:,}'} steps"
    if run.reason:
        yield visible(run.reason)
    seed = "-" if run.seed is None else run.seed
    yield f"policy {run.plans_by}, {run.mode or '-'}, {run.world_size or '-'} ranks, seed {seed}"
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
    """Return the columns of all records, None without any, and what was left out of them.

    Of a run that was killed, steps that some rank did not end are left out, unless no step is whole.
    """
    if (folder / RECORDS).exists():
        return read_parquet(folder / RECORDS), []
    follower, records = Follower(folder), list[StepRecord]()
    for piece in follower.read_all(ended):
        records += piece
    notes = [f"no records: {AGAIN}" if ended else "no records yet"] if not records else []
    if number := follower.num_left_out:
        notes.append(f"{number:,} line{'s' * (number > 1)} left out; the first is {follower.first_left_out}")
    whole = [record for step in WholeSteps().add(records) for record in step]
    return (arrays_of(whole or records) if records else None), notes
