"""Folders of runs for tests, made without training."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ddpsched.launcher_log import launcher_log
from ddpsched.record_lines import sealed
from ddpsched.records import RecordWriter, StepRecord
from ddpsched.run_folder import RunFolder

CONFIG = '[policy]\nkind = "static"\n[executor]\nkind = "distributed"\n[train]\ntarget = "sample_mean"\n'


def record(step: int, rank: int = 0, world_size: int = 2, **values: Any) -> StepRecord:
    """Return the record of a step of 100 ms, of which rank 0 computes 80 and the others 50."""
    compute_s = 0.08 if rank == 0 else 0.05
    given = {
        "run": "run", "mode": "distributed", "policy": "static", "seed": 0, "epoch": step // 100, "step": step,
        "rank": rank, "world_size": world_size, "num_samples": 4, "global_batch": 4 * world_size, "num_tokens": 30,
        "padded_tokens": 40, "max_length": 10, "num_microbatches": 1, "loss_scale": 1.0, "compute_s": compute_s,
        "wait_s": 0.1 - compute_s, "step_s": 0.1, "unix_s": 1e9 + 0.2 * step, "loss": 0.5, "lr": 1e-3,
    }  # fmt: skip
    return StepRecord(**{**given, **values})


def line(found: StepRecord) -> str:
    """Return a record as a run writes it."""
    return sealed(json.dumps(vars(found))) + "\n"


@contextmanager
def going_on(path: Path, total_steps: int | None = 400) -> Iterator[tuple[RunFolder, list[RecordWriter]]]:
    """Yield a run of two ranks that goes on meanwhile in this process, and the writers of its records."""
    folder = RunFolder(path, CONFIG, overwrite=False)
    about = {"run": path.name, "policy": "static", "mode": "distributed", "seed": 0, "world_size": 2}
    with folder.held(is_main=True):
        folder.begin({"device": "a device", "data": "some data"}, about=about, total_steps=total_steps)
        writers = [RecordWriter(path, rank) for rank in range(2)]
        yield folder, writers
        for writer in writers:
            writer.close()


def write(writers: list[RecordWriter], first: int, end: int, **values: Any) -> None:
    """Write the records of some steps, of both ranks."""
    for step in range(first, end):
        for rank, writer in enumerate(writers):
            writer.write(record(step, rank, **values))


def never_begun(path: Path, printed: str = "error: a mistake\n") -> Path:
    """Return the folder of a run whose launcher printed this, and which failed before it began."""
    log = launcher_log(path)
    log.parent.mkdir(parents=True)
    log.write_text(printed)
    return path


def damaged(path: Path, lines: int, steps: int) -> Path:
    """Return the folder of a run of one rank that is done, whose records begin with lines that are none."""
    with going_on(path, steps) as (folder, (writer, _)):
        folder.done(steps)
    text = "".join(line(record(step, world_size=1)) for step in range(steps))
    writer.path.write_text("{\n" * lines + text)
    return path


def finished(path: Path, steps: int = 20) -> Path:
    """Return the folder of a run that is done."""
    with going_on(path, steps) as (folder, writers):
        write(writers, 0, steps)
        folder.done(steps)
    return path
