"""The work of one part's process: ``measure(part, work, smoke)`` writes part.json into its folder."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddpsched.config import RunConfig
from ddpsched.environment import describe
from ddpsched.interleaved import run_interleaved
from ddpsched.records import write_json
from experiments.gpu.arm_tables import facts, steps_of
from experiments.gpu.settings import calibrated, compiled_arms, graph_arms, speed_arms
from experiments.gpu.sizes import FULL, SMOKE, Size

RESULT, STEPS = "part.json", "steps.parquet"
ROOT = Path(__file__).parents[2]


class Stopped(BaseException):
    """This process was asked to stop; no run may take it for an error of its own."""


def device() -> dict[str, Any]:
    """Return the facts of this machine and of its GPU."""
    import torch

    from ddpsched.training.packed import varlen_attn

    facts: dict[str, Any] = {**describe(), "gpu": None, "has_varlen_kernel": varlen_attn is not None}
    if torch.cuda.is_available():
        of = torch.cuda.get_device_properties(0)
        facts["gpu"] = {
            "name": of.name, "memory_bytes": of.total_memory, "multiprocessors": of.multi_processor_count,
            "capability": f"{of.major}.{of.minor}", "cuda": torch.version.cuda,
        }  # fmt: skip
    return facts


def tests(smoke: bool) -> dict[str, Any]:
    """Run the tests that are marked gpu; return their counts, and those that failed. ``smoke``: collect them alone."""
    # these files alone, as collecting all takes half a minute
    marked = [str(path) for path in sorted(ROOT.glob("tests/**/*.py")) if "mark.gpu" in path.read_text("utf-8")]
    words = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider", *marked]
    ended = subprocess.run([*words, *["--collect-only"] * smoke], cwd=ROOT, capture_output=True, text=True, check=False)
    print(ended.stdout[-4000:], ended.stderr[-2000:], flush=True)
    last = next((line for line in reversed(ended.stdout.splitlines()) if line.strip()), "")
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", ended.stdout, re.MULTILINE)
    return {"exit_code": ended.returncode, "last_line": last.strip("= "), "failed_tests": failed}


def attention(size: Size, work: Path) -> dict[str, Any]:
    """Return what each model's first micro-batch of a shape costs, with cuDNN's attention and without it."""
    from experiments.gpu.new_shapes import first_and_later

    found = {
        model: first_and_later(calibrated(model, size, work), size.vocabulary, shortest)
        for model, shortest in (("distilbert", 9), ("gpt2", size.longest // 10))
    }
    return {"models": found}


def calibration(model: str, size: Size, work: Path) -> dict[str, Any]:
    """Calibrate a model into ``work``; return what was fitted, and how well."""
    from ddpsched.training.calibrate import calibrate_to

    found = calibrate_to(
        work / f"calibration-{model}.json", calibrated(model, size, work), overwrite=True, max_tokens=size.calibrated
    )
    identity = found.identity.model_dump()
    return {
        "identity": identity | {"model": Path(identity["model"]).name}, "seconds": found.seconds.model_dump(),
        "held_out_mean": found.seconds_residuals.held_out_mean,
    }  # fmt: skip


def speed(words: Sequence[str], size: Size, work: Path) -> dict[str, Any]:
    """Run the arms of a setting in turn; return their rows."""
    model, ranks, batch = words[0], int(words[1]), int(words[2])
    arms = speed_arms(model, ranks, batch, size, work, work / f"calibration-{model}.json")
    return {"model": model, "world_size": ranks, "global_batch": batch, **in_turn(arms, work)}


def in_turn(arms: Mapping[str, RunConfig], work: Path) -> dict[str, Any]:
    """Run arms in turn; return their rows. Their steps are left in ``work``.

    Where this process is asked to stop, the steps done by then count.
    """
    begin = time.monotonic()

    def stop(*given: object) -> None:
        raise Stopped(f"it was cut off after {time.monotonic() - begin:.0f} s")

    before, found, failed, cut_off = signal.signal(signal.SIGTERM, stop), dict[str, Any](), dict[str, str](), ""
    try:
        failed = run_interleaved(list(arms.values()), overwrite=True)
    except Stopped as error:
        found["cut_off_s"], cut_off = round(time.monotonic() - begin), str(error)
    signal.signal(signal.SIGTERM, before)
    steps_of(arms).to_parquet(work / STEPS, index=False)
    return {**found, "arms": facts(arms, failed, cut_off)}


def compiled(arms: Mapping[str, RunConfig], size: Size, work: Path) -> dict[str, Any]:
    """Run eager and compiled arms in turn; return their rows."""
    model, ranks, batch = size.compiled_at
    return {"model": model, "world_size": ranks, "global_batch": batch, **in_turn(arms, work)}


def measure(part: Sequence[str], work: Path, smoke: bool) -> None:
    """Measure a part: its kind, and which one. ``work``: where it writes."""
    size = SMOKE if smoke else FULL
    kind, *which = part
    found: dict[str, Any]
    if kind == "device":
        found = device()
    elif kind == "tests":
        found = tests(smoke)
    elif kind == "attention":
        found = attention(size, work)
    elif kind == "calibration":
        found = calibration(which[0], size, work)
    elif kind == "speed":
        found = speed(which, size, work)
    elif kind == "compiled":
        found = compiled(compiled_arms(size, work), size, work)
    else:
        found = compiled(graph_arms(size, work), size, work)
    write_json(work / RESULT, found)
