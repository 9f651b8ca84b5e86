"""Step times of a compiled model beside the eager one, as Markdown: arms in turn, virtual ranks on one device.

    python -m experiments.benchmarks.compiled DIR [--steps 300] [--policy static] [--model tiny] [--shapes 4 8 16]
                                               [--backend inductor] [--world-size 4] [--output outputs/compiled]

DIR holds `sst2/train.tsv` and `bert-uncased/`. The arms are eager, eager again (A/A), dynamic, and static with each
number of shapes. For each: the seconds of compiling before the first step; what was compiled within a step; tokens
computed over real ones; the mean step over eager's in the same launch, with the middle half of the ratios of single
steps; and after how many steps the time won has paid for compiling. `--steps 0` runs a whole epoch, `--alone` eager and
static alone.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ddpsched.config import RunConfig, parse
from ddpsched.interleaved import run_interleaved
from ddpsched.records import read_json

WARM_UP = 0.1  # of the steps
POLICIES: dict[str, dict[str, Any]] = {
    "token_budget": {"max_tokens_for_batch": 256},
    "bins": {"median_batch": 8},
    "pool": {"max_tokens_for_batch": 160},
}


def arms(given: argparse.Namespace) -> dict[str, RunConfig]:
    """Return the config of each arm, by name."""
    folder = given.folder
    base: dict[str, Any] = {
        "study": "compiled", "outputs": str(given.output), "global_batch": 32, "world_size": given.world_size,
        "data": {
            "path": str(folder / "sst2" / "train.tsv"), "text": "sentence", "tokenizer": str(folder / "bert-uncased"),
        },
        "policy": {"kind": given.policy, **POLICIES.get(given.policy, {})}, "model": {"name": given.model},
        "train": {"save_model": False}, **({"steps": given.steps} if given.steps else {"epochs": 1}),
    }  # fmt: skip
    compiled = {"backend": given.backend, "cache": str(given.output / "programs")}
    tables: dict[str, dict[str, Any]] = {"eager": {}}
    if not given.alone:
        tables |= {"eager again": {}, "dynamic": {"kind": "dynamic", **compiled}}
    for shapes in given.shapes:
        tables[f"static, N = {shapes}"] = {"kind": "static", "shapes": shapes, **compiled}
    return {
        name: parse({**base, "name": name.replace(", N = ", "-").replace(" ", "-"), "compile": table})
        for name, table in tables.items()
    }


def step_times(records: pd.DataFrame) -> np.ndarray:
    """Return the seconds of each step, (steps,)."""
    return records.groupby("step")["step_s"].max().to_numpy()


def main(words: Sequence[str] | None = None) -> None:
    """Run all arms in turn, and print the table."""
    parser = argparse.ArgumentParser(description="Step times of a compiled model beside the eager one.")
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--policy", default="static")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--shapes", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--world-size", type=int, default=4)
    parser.add_argument("--alone", action="store_true", help="eager and static arms alone")
    parser.add_argument("--output", type=Path, default=Path("outputs/compiled"))
    given = parser.parse_args(words)
    configs = arms(given)
    failed = run_interleaved(list(configs.values()), overwrite=True)
    if failed:
        raise SystemExit(f"failed: {failed}")
    base = None
    print(f"\n{given.model}, {given.policy}, {given.backend}, {given.world_size} virtual ranks\n")
    print("| arm | compiling s | within steps | computed / real tokens | step / eager's | break-even |")
    print("|:--|--:|--:|--:|:--|--:|")
    for name, config in configs.items():
        records = pd.read_parquet(config.run_dir / "records.parquet")
        made = read_json(config.run_dir / "environment.json").get("compile", {})
        times = step_times(records)
        base = times if base is None else base
        warm = int(len(times) * WARM_UP)
        steps = min(len(times), len(base))  # on other menus, steps of varying size may be another number
        ratio = times[warm:].mean() / base[warm:].mean()
        low, high = np.percentile(times[warm:steps] / base[warm:steps], (25, 75))
        won = base[warm:].mean() - times[warm:].mean()
        seconds = made.get("seconds", 0.0)
        even = f"{seconds / won:,.0f} steps" if seconds and won > 0 else "never" if seconds else ""
        within = int(records["recompiled"].notna().sum())
        computed = records["padded_tokens"].sum() / records["num_tokens"].sum()
        print(
            f"| {name} | {seconds:.1f} | {within} | {computed:.3f} | {ratio:.3f} ({low:.3f} to {high:.3f}) | {even} |"
        )


if __name__ == "__main__":
    main()
