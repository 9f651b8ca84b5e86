"""A process for each part, forked off one that has loaded torch: importing it for each would take a minute in all."""

import contextlib
import json
import multiprocessing
import os
import signal
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from experiments.gpu.measure import RESULT, measure

GRACE_S = 12.0  # from the request to stop until a part is ended
LOADED = [
    "experiments.gpu.measure", "ddpsched.interleaved", "ddpsched.training.calibrate", "pandas",
    "transformers.models.distilbert.modeling_distilbert", "transformers.models.gpt2.modeling_gpt2",
]  # fmt: skip


def run_part(part: str, work: Path, smoke: bool, limit: float, log: Path) -> dict[str, Any]:
    """Run one part in a process of its own; return what it found, or why it found nothing.

    ``limit``: seconds, after which it is asked to stop; it then returns the rows of what it has done.
    """
    result = work / RESULT
    result.unlink(missing_ok=True)
    with log.open("ab") as lines:
        lines.write(f"\n--- {part}\n".encode())
    # a package that asks for a GPU as it is imported must not begin to use one, which forked processes could not
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    process = context.Process(target=_run, args=(part, work, smoke, log))
    process.start()
    try:
        in_time = _in_time(process, limit)
    finally:  # after Ctrl-C, too
        process.kill()
        assert process.pid is not None, "it was started"
        with contextlib.suppress(ProcessLookupError):  # none of them is left
            os.killpg(process.pid, signal.SIGKILL)  # and what it has started, which would run beside the next part
        process.join()
    if not result.exists() and not in_time:
        return {"failed": f"it took more than {limit:.0f} s"}
    if not result.exists():
        last = log.read_bytes().decode(errors="replace").strip().splitlines()[-1]
        return {"failed": f"exit code {process.exitcode}: {last[:300]}"}
    found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return found


def _in_time(process: BaseProcess, limit: float) -> bool:
    """Wait for a process, and return whether it ended within ``limit`` seconds; else it was asked to stop then."""
    process.join(limit)
    if process.exitcode is None:
        process.terminate()
        process.join(GRACE_S)
        return False
    return True


def _run(part: str, work: Path, smoke: bool, log: Path) -> None:
    os.setsid()
    os.environ["DDPSCHED_CACHE"] = str(work / "kept")  # its own measurements, and not those that somebody kept
    with log.open("ab") as lines:
        os.dup2(lines.fileno(), 1)
        os.dup2(lines.fileno(), 2)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # so that a killed part has said all
    measure(part.split(), work, smoke)
