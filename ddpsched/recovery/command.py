"""The command `ddpsched audit`: what a run trained, epoch by epoch."""

import json
from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.table import Table

from ddpsched.data.quarantine import QUARANTINE
from ddpsched.recovery.audit import Audit, audit
from ddpsched.terminal import plain_console


def answer(folder: Path, as_json: bool) -> bool:
    """Print the audit of a run; return whether it found no fault. Raises DataError as ``audit`` does."""
    found = audit(folder)
    if as_json:
        print(json.dumps(asdict(found), indent=2))
    else:
        console = plain_console()
        console.print(_table(found))
        for line in _lines(found):
            console.print(line, soft_wrap=True)
    return not found.faults


def _table(found: Audit) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=f"{found.run} ({found.state})", title_justify="left")
    for heading in ("epoch", "samples", "trained", "never", "again", "skipped"):
        table.add_column(heading, justify="right")
    for each in found.epochs:
        never = str(len(each.never)) if each.complete else "-"
        cells = (each.epoch, found.num_samples, each.num_trained, never, len(each.again), len(each.skipped))
        table.add_row(*map(str, cells))
    return table


def _lines(found: Audit) -> list[str]:
    began = ", ".join(f"after step {start['step']} on {start['world_size']} ranks" for start in found.starts[1:])
    lines = [f"went on {began}"] if began else []
    if found.num_quarantined:
        lines.append(f"{found.num_quarantined} rows of the data files were left out, as {QUARANTINE} names them")
    if found.with_replacement:
        lines.append("the policy draws with replacement: samples may run again or never")
    if any(not each.complete for each in found.epochs):
        lines.append("never: not known for an epoch that was not ended (-)")
    if any(each.skipped for each in found.epochs):
        lines.append("skipped: run, but their step's gradient was not finite and not applied (train.non_finite)")
    return [*lines, *(f"FAULT: {fault}" for fault in found.faults), f"{found.num_steps} steps; {_verdict(found)}"]


def _verdict(found: Audit) -> str:
    skipped = sum(len(each.skipped) for each in found.epochs)
    if found.faults:
        return "not exactly once"
    if not found.num_steps:
        return "nothing was trained"
    if found.with_replacement:
        return "the ledger and the records agree"
    if skipped:
        return f"every sample was run once, {skipped:,} of them in skipped steps, which train nothing"
    if not all(each.complete for each in found.epochs):
        return "no sample was trained twice in an epoch"
    return "every sample was trained once"
