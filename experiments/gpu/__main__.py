"""Measure on one GPU what is claimed on CPUs: ``python -m experiments.gpu [--output DIR] [--budget 540] [--smoke]``.

The tests for a GPU; calibrations in bfloat16 of DistilBERT's shape and of GPT-2's with four layers; 4 and 8 virtual
ranks at small and large global batches, all arms in turn, with what was predicted of them; eager and compiled arms.
Data and models are made on the spot, and no network is needed. Each part is a process of its own, and what it found is
in ``gpu.json`` as soon as it ends, so a call that is cut off keeps the parts before; a part that fails says why and
leaves the others to go on. ``--smoke``: tiny, on a CPU, to see that all of it works.

The folder holds four files: gpu.json, log.txt and the two calibrations. ``python -m report.build
--freeze outputs/gpu`` puts it into the report, under the device's name.

On a machine without a network, with an image that has torch and transformers: ``make gpu-wheels`` on one with a network
gathers the other packages, for Linux and Python 3.12, in ``wheels/``; there

    python3 -m pip install --quiet --no-index --no-deps --target site wheels/*.whl
    PYTHONPATH=site python3 -m experiments.gpu
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ddpsched.records import write_json
from experiments.gpu.measure import RESULT, ROOT
from experiments.gpu.parts import LIMITS, parts
from experiments.gpu.sizes import FULL, SMOKE

LEAST_S = 15.0  # in which no part gets anywhere
CALIBRATIONS = "calibration-*.json"
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def run_part(part: str, work: Path, smoke: bool, limit: float, log: Path) -> dict[str, Any]:
    """Run one part in a process of its own; return what it found, or why it found nothing."""
    result = work / RESULT
    result.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "experiments.gpu.measure",
        *part.split(),
        "--work",
        str(work),
        *["--smoke"] * smoke,
    ]
    # its own measurements, and not those that somebody kept
    environ = os.environ | {"DDPSCHED_CACHE": str(work / "kept"), "PYTHONUNBUFFERED": "1"}
    with log.open("ab") as lines:
        lines.write(f"\n--- {part}\n".encode())
        lines.flush()
        ended = subprocess.Popen(
            command, cwd=ROOT, env=environ, stdout=lines, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            ended.wait(limit)
        except subprocess.TimeoutExpired:
            return {"failed": f"it took more than {limit:.0f} s"}
        finally:  # after Ctrl-C, too
            if ended.poll() is None:
                os.killpg(ended.pid, signal.SIGKILL)  # and what it has started, which would run beside the next part
                ended.wait()
    if not result.exists():
        last = log.read_bytes().decode(errors="replace").strip().splitlines()[-1]
        return {"failed": f"exit code {ended.returncode}: {last[:300]}"}
    found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return found


@app.command()
def main(
    output: Annotated[Path, typer.Option(help="the folder of what is found")] = Path("outputs/gpu"),
    budget: Annotated[float, typer.Option(min=1, help="seconds, after which no part begins or goes on")] = 540.0,
    smoke: Annotated[bool, typer.Option("--smoke", help="tiny, on a CPU, to see that all of it works")] = False,
) -> None:
    """Measure all that is claimed on CPUs on a GPU; the exit code is 1 where a part failed or found no time."""
    begin = time.monotonic()
    output.mkdir(parents=True, exist_ok=True)
    log = output.resolve() / "log.txt"
    log.write_bytes(b"")
    size, found = SMOKE if smoke else FULL, dict[str, Any]()
    with tempfile.TemporaryDirectory(prefix="ddpsched-gpu-") as folder:
        work = Path(folder)
        for part in parts(size):
            start = time.monotonic()
            left = min(budget - (start - begin), LIMITS[part.split()[0]])
            found[part] = (
                {"failed": f"the budget of {budget:.0f} s was used up"}
                if left < min(LEAST_S, budget)
                else run_part(part, work, smoke, left, log)
            )
            found[part]["seconds"] = round(time.monotonic() - start, 1)
            for file in work.glob(CALIBRATIONS):
                (output / file.name).write_bytes(file.read_bytes())
            write_json(output / "gpu.json", {"smoke": smoke, "date": time.strftime("%Y-%m-%d"), "parts": found})
            print(f"{part}: {found[part].get('failed', 'done')}, {found[part]['seconds']} s", flush=True)
            if part == "device" and found[part].get("gpu") is None and not smoke:
                print("error: there is no CUDA device here; --smoke tries the kit on a CPU", file=sys.stderr)
                raise typer.Exit(1)
    failed = [part for part, each in found.items() if "failed" in each]
    print(f"{output}: {len(found) - len(failed)} of {len(found)} parts in {time.monotonic() - begin:.0f} s")
    raise typer.Exit(1 if failed else 0)


if __name__ == "__main__":
    app()
