"""The process of one part: ``python -m experiments.gpu.measure PART --work DIR [--smoke]`` writes DIR/part.json."""

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddpsched.environment import describe
from ddpsched.interleaved import run_interleaved
from ddpsched.records import write_json
from experiments.gpu.arm_tables import rows
from experiments.gpu.settings import calibrated, compiled_arms, speed_arms
from experiments.gpu.sizes import FULL, SMOKE, Size

RESULT = "part.json"
ROOT = Path(__file__).parents[2]


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
    failed = run_interleaved(list(arms.values()), overwrite=True)
    return {"model": model, "world_size": ranks, "global_batch": batch, "arms": rows(arms, failed)}


def compiled(size: Size, work: Path) -> dict[str, Any]:
    """Run eager and compiled arms in turn; return their rows."""
    arms = compiled_arms(size, work)
    failed = run_interleaved(list(arms.values()), overwrite=True)
    model, ranks, batch = size.speed[0]
    return {"model": model, "world_size": ranks, "global_batch": batch, "arms": rows(arms, failed)}


def main(words: Sequence[str] | None = None) -> None:
    """Measure the part that is named."""
    parser = argparse.ArgumentParser(description="One part of the measurements on a GPU.")
    parser.add_argument("part", nargs="+")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--smoke", action="store_true")
    given = parser.parse_args(words)
    size = SMOKE if given.smoke else FULL
    kind, *which = given.part
    found: dict[str, Any]
    if kind == "device":
        found = device()
    elif kind == "tests":
        found = tests(given.smoke)
    elif kind == "calibration":
        found = calibration(which[0], size, given.work)
    elif kind == "speed":
        found = speed(which, size, given.work)
    else:
        found = compiled(size, given.work)
    write_json(given.work / RESULT, found)


if __name__ == "__main__":
    main()
