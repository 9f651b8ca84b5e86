"""Measure on one GPU what is claimed on CPUs: ``python -m experiments.gpu [--output DIR] [--budget 520] [--smoke]``.

The tests for a GPU; calibrations in bfloat16 of DistilBERT's shape and of GPT-2's with four layers; 4 and 8 virtual
ranks at small and large global batches, all arms in turn, with what was predicted of them; eager and compiled arms.
Data and models are made on the spot, and no network is needed. Each part is a process of its own, and what it found is
in ``gpu.json`` as soon as it ends, so a call that is cut off keeps the parts before; a part that fails says why and
leaves the others to go on; one that takes too long is asked to stop, and keeps the steps that all its arms have done.
The next call with the same folder, on the same kind of device, does what is left. ``--smoke``: tiny, on a CPU, to see
that all of it works.

The folder holds five files: gpu.json, steps.parquet with the records of all steps, log.txt and two calibrations.
``python -m report.build --freeze outputs/gpu`` puts it into the report, under the device's name.

On a machine without a network, with an image that has torch and transformers: ``make gpu-wheels`` on one with a network
gathers the other packages, for Linux and Python 3.12, in ``wheels/``; there

    python3 -m pip install --quiet --no-index --no-deps --target site wheels/*.whl
    PYTHONPATH=site python3 -m experiments.gpu
"""

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.gpu.outcome import Outcome
from experiments.gpu.parts import LIMITS, parts, within
from experiments.gpu.processes import run_part
from experiments.gpu.sizes import FULL, SMOKE

LEAST_S = 15.0  # in which no part gets anywhere
WORK = Path(tempfile.gettempdir()) / "ddpsched-gpu"  # the same in each call, as calibrations name the model's folder
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def main(
    output: Annotated[Path, typer.Option(help="the folder of what is found")] = Path("outputs/gpu"),
    budget: Annotated[
        float, typer.Option(min=1, help="seconds until no part goes on; ending it takes up to 12 more")
    ] = 520.0,
    smoke: Annotated[bool, typer.Option("--smoke", help="tiny, on a CPU, to see that all of it works")] = False,
    force: Annotated[bool, typer.Option("--force", help="measure anew what the folder holds")] = False,
) -> None:
    """Measure all that is claimed on CPUs on a GPU; the exit code is 1 where a part failed or found no time."""
    begin = time.monotonic()
    output.mkdir(parents=True, exist_ok=True)
    log = output.resolve() / "log.txt"
    log.write_bytes(b"")
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir()
    try:
        first, *others = parts(SMOKE if smoke else FULL)
        limits = dict.fromkeys(LIMITS, budget) if smoke else LIMITS  # a busy CPU may take long
        device = run_part(first, WORK, smoke, limits[first], log)
        if device.get("gpu") is None and not smoke:
            why = device.get("failed", "there is no CUDA device here; --smoke tries the kit on a CPU")
            print(f"error: {why}", file=sys.stderr)
            raise typer.Exit(1)
        outcome = Outcome(output, device, smoke, force, WORK)
        kept = [part for part in others if outcome.is_whole(part)]
        for part in kept:
            print(f"{part}: kept", flush=True)
        to_do = [part for part in others if part not in kept]
        for place, part in enumerate(to_do, 1):
            start = time.monotonic()
            left = budget - (start - begin)
            limit = within(left, limits[part.split()[0]], sum(limits[each.split()[0]] for each in to_do[place:]))
            found: dict[str, Any] = (
                {"failed": f"the budget of {budget:.0f} s was used up"}
                if limit < min(LEAST_S, budget)
                else run_part(part, WORK, smoke, limit, log)
            )
            found["seconds"] = round(time.monotonic() - start, 1)
            outcome.add(part, found)
            ended = f"cut off after {found['cut_off_s']} s" if "cut_off_s" in found else "done"
            print(f"{part}: {found.get('failed', ended)}, {found['seconds']} s", flush=True)
    finally:
        shutil.rmtree(WORK)
    whole = [part for part in outcome.parts if outcome.is_whole(part)]
    print(f"{output}: {len(whole)} of {len(outcome.parts)} parts in {time.monotonic() - begin:.0f} s")
    raise typer.Exit(0 if len(whole) == len(outcome.parts) else 1)


if __name__ == "__main__":
    app()
