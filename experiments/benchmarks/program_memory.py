"""Memory and seconds of compiled programs: all of a menu's at once, taken from disk, and a few at a time, as Markdown.

    python -m experiments.benchmarks.program_memory DIR [--shapes 16] [--live 2 4] [--model tiny] [--backend inductor]
                                                     [--steps 0]

DIR holds `sst2/train.tsv` and `bert-uncased/`. Each line is a run in a process of its own over samples that come by
length: eager, all programs, the same from the folder that the run before kept them in (``compile.cache``), and at most
so many at a time (``compile.live``), with the compiler reset between groups and an empty folder. For each: the peak of
the process's resident memory, beyond that of the eager run; programs that were made, and the seconds this took; what
was compiled within steps. `--steps 0` runs a whole epoch.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

KIB = 1024  # getrusage counts in these on Linux


def config(given: argparse.Namespace, live: int | None, output: Path, cache: Path) -> dict[str, Any]:
    """Return the run's config; ``live``: 0 for an eager run. ``cache``: of programs."""
    folder = given.folder
    compiler: dict[str, Any] = {"kind": "static", "shapes": given.shapes, "backend": given.backend}
    return {
        "name": "memory", "outputs": str(output), "global_batch": 32, "world_size": 4,
        "data": {
            "path": str(folder / "sst2" / "train.tsv"), "text": "sentence", "tokenizer": str(folder / "bert-uncased"),
        },
        "order": {"kind": "curriculum"}, "policy": {"kind": "static"}, "model": {"name": given.model},
        "train": {"save_model": False}, **({"steps": given.steps} if given.steps else {"epochs": 1}),
        "compile": {} if live == 0 else {**compiler, "cache": str(cache)} | ({"live": live} if live else {}),
    }  # fmt: skip


def measured(table: dict[str, Any]) -> dict[str, Any]:
    """Run this config here; return its memory and what was compiled."""
    import pandas as pd

    from ddpsched.config import parse
    from ddpsched.records import read_json
    from ddpsched.run_loop import run

    folder = run(parse(table))
    made = read_json(folder / "environment.json").get("compile", {})
    programs, groups = made.get("programs", []), made.get("groups", [])
    return {
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB,
        "made": len(programs) + sum(len(group["shapes"]) for group in groups),
        "seconds": made.get("seconds", 0.0) + sum(group["seconds"] for group in groups),
        "resets": len(groups),
        "within": int(pd.read_parquet(folder / "records.parquet")["recompiled"].notna().sum()),
    }


def main() -> None:
    """Print the table; with ``--one CONFIG`` run one config and print what it took."""
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measured(json.loads(sys.argv[2]))))
        return
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmarks.program_memory", description="Memory of compiled programs."
    )
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--shapes", type=int, default=16)
    parser.add_argument("--live", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--steps", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as kept:
        show(given, Path(kept))


def show(given: argparse.Namespace, kept: Path) -> None:
    """Print a line for each run; ``kept``: a folder for the programs of those that have all."""
    print(f"{given.model}, static by rising length, N = {given.shapes}, {given.backend}\n")
    print("| programs at a time | peak memory MiB | beyond eager MiB | made | resets | seconds | within steps |")
    print("|:--|--:|--:|--:|--:|--:|--:|")
    eager = 0.0
    arms: list[tuple[str, int | None]] = [("none, eager", 0), ("all", None), ("all, from disk", None)]
    for name, live in arms + [(str(each), each) for each in given.live]:
        with tempfile.TemporaryDirectory() as output:
            cache = kept if live is None else Path(output) / "programs"
            table = json.dumps(config(given, live, Path(output), cache))
            command = [sys.executable, "-m", "experiments.benchmarks.program_memory", "--one", table]
            found = json.loads(
                subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
            )
        peak = found["peak_bytes"] / 2**20
        eager = peak if live == 0 else eager
        cells = f"{peak:,.0f}", f"{peak - eager:,.0f}", found["made"], found["resets"], f"{found['seconds']:.0f}"
        print(f"| {name} | {' | '.join(map(str, cells))} | {found['within']} |", flush=True)


if __name__ == "__main__":
    main()
