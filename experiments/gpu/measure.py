"""The work of one part's process: ``measure(part, work, smoke)`` writes part.json into its folder."""

import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
    words = [sys.executable, "-u", "-m", "pytest", "-m", "gpu", "-v", "-p", "no:cacheprovider", *marked]
    return followed([*words, *["--collect-only"] * smoke])


def followed(words: Sequence[str]) -> dict[str, Any]:
    """Run pytest with ``-v``; return its exit code, its last line, and the tests that failed.

    Where this process is asked to stop, those that ended by then count, and the last line says how many passed.
    """
    begin, lines, found = time.monotonic(), list[str](), dict[str, Any]()
    ran = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert ran.stdout is not None, "it was asked for"
    try:
        with stoppable(begin):
            for line in ran.stdout:
                print(line, end="", flush=True)
                lines.append(line.strip())
        last = next((line for line in reversed(lines) if line), "").strip("= ")
    except Stopped:
        found["cut_off_s"] = round(time.monotonic() - begin)
        last = f"{sum(' PASSED' in line for line in lines)} passed before time was up"
        ran.kill()
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)|^(\S+) (?:FAILED|ERROR)", "\n".join(lines), re.MULTILINE)
    names = list(dict.fromkeys(one or other for one, other in failed))
    return {**found, "exit_code": ran.wait(), "last_line": last, "failed_tests": names}


@contextmanager
def stoppable(begin: float) -> Iterator[None]:
    """Raise Stopped in this process once it is asked to stop. ``begin``: of the work, by time.monotonic."""

    def stop(*given: object) -> None:
        raise Stopped(f"it was cut off after {time.monotonic() - begin:.0f} s")

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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
    begin, found, failed, cut_off = time.monotonic(), dict[str, Any](), dict[str, str](), ""
    for config in arms.values():  # else an arm that is cut off before its first step would show an earlier part's
        shutil.rmtree(config.run_dir, ignore_errors=True)
    try:
        with stoppable(begin):
            failed = run_interleaved(list(arms.values()), overwrite=True)
    except Stopped as error:
        found["cut_off_s"], cut_off = round(time.monotonic() - begin), str(error)
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
