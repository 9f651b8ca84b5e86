"""Damaged files of finished runs, calibrations, costs and orders, read by the analysis, the audit and the commands."""

import contextlib
import inspect
import io
import json
import tempfile
import tomllib
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import tomli_w

from analysis.compare_runs import compared
from analysis.load import Run, load_run, load_study
from ddpsched import cli
from ddpsched.config import dump, parse
from ddpsched.costs.calibration import Calibration
from ddpsched.costs.config import CostConfig, check_range, cost_model
from ddpsched.data.lengths import KnownLengths
from ddpsched.errors import DataError
from ddpsched.exchange import LocalExchange
from ddpsched.planning.planner import plan_steps
from ddpsched.record_lines import sealed
from ddpsched.records import MAY_BE_NAN, RECORDS, RecordWriter, compact, read_lines, write_json
from ddpsched.recovery.audit import audit
from ddpsched.recovery.ledger import LEDGER, Head, Ledger, chained
from ddpsched.run_folder import STATUS, read_status
from ddpsched.simulated import SimulatedExecutor
from experiments.reliability.fuzz.configs import is_wrong
from experiments.reliability.fuzz.mutate import any_value, at, bytes_changed, changed, leaves, removed
from experiments.reliability.fuzz.orders import change_order, read_order, write_order
from experiments.reliability.fuzz.outcome import AcceptedWrongly, Tally, taken

LINES, CALIBRATION, FITTED, ORDER = "records-rank0.jsonl", "device.json", "cost.json", "order.npy"
FILES = (
    STATUS,
    "config.toml",
    "environment.json",
    "evaluations.jsonl",
    RECORDS,
    LINES,
    LINES,
    LEDGER,
    LEDGER,
    CALIBRATION,
    FITTED,
    ORDER,
)
ENVIRONMENT: dict[str, Any] = {
    "versions": {"python": "3.11.7"}, "device": "Example CPU", "cpu": "Example CPU", "cores": 2, "memory_bytes": 2**34,
    "num_samples": 200, "num_parameters": None, "clocks": None,
    "launch": {"how": "interleaved", "id": "one", "margin": 0.02},
    "starts": [{"step": 0, "at": "2026-01-01T00:00:00+00:00", "world_size": 2}],
}  # fmt: skip
POINT = {"count": 2, "length": 16, "held_out": False, "seconds": [0.01, 0.02], "peak_bytes": 10**6}
SHARES = dict.fromkeys(("train_mean", "train_max", "held_out_mean", "held_out_max", "worst_underestimate"), 0.01)
MEASURED: dict[str, Any] = {
    "kind": "calibration", "version": 1, "identity": {"model": "tiny", "max_length": 128, "threads": 1},
    "versions": {"python": "3.11.7"},
    "seconds": {"alpha": 0.01, "beta": 1e-4, "gamma": 1e-7, "delta": 0.0, "floor": 0.0},
    "bytes": {"base": 1e6, "per_sample": 10.0, "per_token": 4.0, "per_square": 0.0},
    "seconds_residuals": SHARES, "bytes_residuals": SHARES, "points": [POINT],
}  # fmt: skip
Case = tuple[str, Callable[[], object], bool]  # what was done, the reader, and whether it must refuse


@dataclass(frozen=True)
class Whole:
    """A run before it is damaged, its records as lines, and its ledger."""

    run: Run
    rows: list[dict[str, Any]]
    ledger: bytes


def fuzz(count: int, seed: int) -> Tally:
    """Damage ``count`` files, one at a time, and return how they are taken."""
    random, tally = Random(seed), Tally()
    with tempfile.TemporaryDirectory() as name:
        run, other = (_write_run(Path(name) / "study", policy) for policy in ("static", "balanced"))
        whole = Whole(load_run(run), read_lines(run), (run / LEDGER).read_bytes())
        for _ in range(count):
            path = run / random.choice(FILES)
            before = path.read_bytes()
            try:
                how, read, must_refuse = _case(random, path, whole, other)
                outcome, said = taken(read, partial(has_place, path), must_refuse)
            finally:
                path.write_bytes(before)
            tally.add(outcome, f"{path.name}, {how}: {said}")
    return tally


def has_place(path: Path, message: str) -> bool:
    """Return whether a message names the file, or the folder whose files contradict each other or another run's."""
    return path.name in message or str(path.parent) in message or "cost.alpha" in message


def _write_run(study: Path, policy: str) -> Path:
    """Write a run's folder as a run leaves it, with times that a cost model computed; return it."""
    values = {
        "name": policy, "study": study.name, "outputs": str(study.parent), "steps": 8, "world_size": 2,
        "global_batch": 8, "policy": {"kind": policy},
    }  # fmt: skip
    config, folder = parse(values), study / policy
    folder.mkdir(parents=True)
    lengths = KnownLengths(np.random.default_rng(0).integers(3, 128, 200))
    executor = SimulatedExecutor(config, lengths)
    ledger = Ledger(folder, Head())
    with closing(RecordWriter(folder, 0)) as writer, closing(ledger):
        for plan in plan_steps(config.plan_spec(), lengths, LocalExchange(2)):
            for record in executor.execute(plan):
                writer.write(replace(record, loss=0.5, grad_norm=1.0, lr=1e-3, plan_wait_s=0.0))
            ledger.commit(plan, skipped=False)
    compact(folder)
    (folder / "config.toml").write_text(dump(config), encoding="utf-8")
    write_json(folder / "environment.json", ENVIRONMENT | {"ledger": ledger.head})
    row = {"step": 8, "loss": 0.5, "accuracy": 0.75, "num_samples": 40, "majority": 0.5, "perplexity": None}
    (folder / "evaluations.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    write_json(folder / STATUS, {"state": "done", "reason": None, "started": "", "finished": "", "wall_s": 1.0})
    write_json(folder / CALIBRATION, MEASURED)
    write_order(folder / ORDER)
    write_json(
        folder / FITTED, {"kind": "affine_quadratic", "alpha": 0.01, "beta": 1e-4, "gamma": 0.0, "residuals": {}}
    )
    return folder


def _case(random: Random, path: Path, whole: Whole, other: Path) -> Case:
    """Damage one file of a run."""
    if random.random() < 0.4:
        path.write_bytes(bytes_changed(random, path.read_bytes()))
        return "bytes", lambda: _read(path, whole, other, exact=True), False
    if path.name == RECORDS:
        how, must_refuse = _change_table(random, path)
    elif path.name == LINES:
        how, must_refuse = _change_line(random, path)
    elif path.name == ORDER:
        how, must_refuse = change_order(random, path)
    elif path.name == LEDGER:
        how, must_refuse = _change_ledger(random, path)
    else:
        how, must_refuse = _change_value(random, path)
    return how, lambda: _read(path, whole, other, exact=False), must_refuse


def _change_value(random: Random, path: Path) -> tuple[str, bool]:
    """Change one value of a JSON or TOML file."""
    values = _values(path)
    spot = random.choice(list(leaves(values)))
    key, old = ".".join(map(str, spot)), at(values, spot)
    checked = path.name == CALIBRATION and "shape" not in spot and "versions" not in spot
    if random.random() < 0.2:
        _write(path, removed(values, spot))
        return f"without {key}", False
    new = any_value(random)
    _write(path, changed(values, spot, new))
    return f"{key} = {str(new)[:60]!r}", checked and old is not None and is_wrong(old, _as_written(path, new))


def _values(path: Path) -> dict[str, Any]:
    """Return the values of a file that is not damaged."""
    text = path.read_text(encoding="utf-8")
    values: dict[str, Any] = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    return values


def _write(path: Path, values: Any) -> None:
    if path.suffix == ".toml":
        path.write_text(tomli_w.dumps(values), encoding="utf-8")
    else:
        path.write_text(json.dumps(values, default=str) + "\n", encoding="utf-8")


def _as_written(path: Path, value: Any) -> Any:
    """Return the value that a reader finds: JSON has no dates, which are written as text."""
    return str(value) if isinstance(value, date) and path.suffix != ".toml" else value


def _change_line(random: Random, path: Path) -> tuple[str, bool]:
    """Change a value of a record; its checksum is right, or is the old one."""
    lines = path.read_text(encoding="utf-8").splitlines()
    number = random.randrange(len(lines))
    how = random.choice(["value", "value", "remove", "swap", "again", "sum"])
    row = json.loads(lines[number])
    row.pop("crc")
    name = random.choice(list(row))
    must_refuse = True
    if how == "value":
        new, old = any_value(random), row[name]
        row[name], how = new, f"{name} = {str(new)[:60]!r}"
        must_refuse = old is not None and name not in MAY_BE_NAN and is_wrong(old, _as_written(path, new))
    elif how == "remove":
        del row[name]
        how, must_refuse = f"without {name}", name in ("seed", "step", "rank", "num_samples", "loss_scale")
    if how == "swap":
        del lines[number]  # and what follows it closes up
        must_refuse = 2 <= number < len(lines) - 1
    elif how == "again":
        lines.insert(number, lines[number])
    elif how == "sum":
        lines[number] = lines[number][:-4] + ("0" if lines[number][-4] != "0" else "1") + lines[number][-3:]
    else:
        lines[number] = sealed(json.dumps(row, default=str))
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return f"line {number + 1}, {how}", must_refuse


def _change_ledger(random: Random, path: Path) -> tuple[str, bool]:
    """Change a value of a step, or leave steps out at the end; all lines chain as they should."""
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    steps = [{key: value for key, value in line.items() if key != "chain"} for line in lines]
    number = random.randrange(len(steps))
    if random.random() < 0.2:
        how, changes, new = f"{number} steps are left", True, steps[:number]
    else:
        spot, value = random.choice(list(leaves(steps[number]))), any_value(random)
        how = f"line {number + 1}, {'.'.join(map(str, spot))} = {str(value)[:60]!r}"
        new = [*steps[:number], changed(steps[number], spot, value), *steps[number + 1 :]]
        changes = json.dumps(new, default=str) != json.dumps(steps)
    head, text = Head(), b""
    for step in new:
        line, head = chained(head, json.dumps(step, separators=(",", ":"), default=str).encode())
        text += line
    path.write_bytes(text)
    return how, changes


def _change_table(random: Random, path: Path) -> tuple[str, bool]:
    """Change a column or a row of the records in Parquet."""
    table = pd.read_parquet(path)
    how = random.choice(["cell", "cell", "drop", "rename", "text", "again", "rows", "type"])
    name = random.choice(["step", "rank", "num_samples", "compute_s", "step_s", "padded_tokens", "world_size", "loss"])
    must_refuse = True
    if how == "cell":
        value = random.choice([-1, 2**63 - 1, np.nan, np.inf, -np.inf, -1e300])
        how, table[name] = f"{name} = {value}", table[name].astype("float64")
        table.loc[random.randrange(len(table)), name] = value
        must_refuse = name != "loss" and (name in ("step", "rank") or value in (-1, -1e300, np.inf, -np.inf))
    elif how == "drop":
        table, must_refuse = table.drop(columns=name), name not in ("compute_s", "step_s", "loss")
    elif how == "rename":
        table = table.rename(columns={name: random.choice(["x", name.upper(), ""])})
    elif how == "text":
        table[name] = "a"
    elif how == "again":
        table = pd.concat([table, table.iloc[[random.randrange(len(table))]]])
    elif how == "rows":
        table = table.iloc[:0]
    else:
        table[name] = [[1]] * len(table)
    table.to_parquet(path)
    return f"{how} of {name}", must_refuse


def _read(path: Path, whole: Whole, other: Path, exact: bool) -> None:
    """Read a run one of whose files is damaged, in every way that reads that file.

    ``exact``: records that are accepted must be those that were written.
    """
    run = path.parent
    if path.name == CALIBRATION:
        calibration = Calibration.load(path)
        check_range(calibration.time, 8, 128)
        calibration.time.padded(2, 128), calibration.memory.bytes(2, 128), calibration.check(calibration.identity)
        return
    if path.name == ORDER:
        read_order(path, exact)
        return
    if path.name == FITTED:
        cost = cost_model(CostConfig(kind="affine_quadratic", path=str(path)))
        check_range(cost, 8, 128)
        cost.padded(2, 128)
        return
    if path.name == LINES:
        rows = read_lines(run)
        if exact and rows != whole.rows[: len(rows)]:
            raise AcceptedWrongly("other records than were written")
        with contextlib.redirect_stdout(io.StringIO()):
            inspect.unwrap(cli.fit)(run, None)  # without ending the process
        return
    if path.name in (LEDGER, "environment.json", "config.toml", STATUS):
        if faults := audit(run).faults:
            raise DataError(f"{run}: {faults[0]}")
        if exact and (run / LEDGER).read_bytes() != whole.ledger:
            raise AcceptedWrongly("another ledger than was written")
    if read_status(run)["state"] != "done":
        return
    found = load_run(run)
    if exact and path.name == RECORDS and not found.records.equals(whole.run.records):
        raise AcceptedWrongly("other records than were written")
    if len(load_study(run.parent).runs) == 2:
        compared(run, [other])
