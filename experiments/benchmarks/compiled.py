"""Step times of a compiled model beside the eager one, by policy, as Markdown: arms in turn, virtual ranks.

    python -m experiments.benchmarks.compiled DIR [--policies static balanced auto] [--shapes 4 8 16] [--steps 150]
        [--launches 5] [--model tiny] [--backend inductor] [--world-size 4] [--output outputs/compiled] [--freeze]

DIR holds `sst2/train.tsv` and `bert-uncased/`. Each launch of a policy is a process of its own, with the same samples.
The first begins with an empty cache, so that compiling counts in full; later ones take from it what was compiled. The
arms take turns step by step: static eager, static eager again (A/A), the policy's eager model, dynamic, and static with
each number of shapes. `--steps 0` runs a whole epoch, `--alone` the policy's eager and static arms alone. `--freeze`
writes each policy into `report/results/compiled/` as it ends, in the place of an earlier one: a stopped command goes on
with the policies that are left.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import pandas as pd

from analysis.compiled import AGAIN, DYNAMIC, EAGER, STATIC, Arm, joined, rows, with_ratios
from analysis.freeze import portable
from ddpsched.command_exit import guarded
from ddpsched.config import RunConfig, parse
from ddpsched.errors import ConfigError, RunError
from ddpsched.interleaved import run_interleaved
from ddpsched.records import read_json, write_json
from experiments.benchmarks.bench import add_launches, launched
from experiments.reliability.findings import stamp
from report.compiled import HEADINGS, cells
from report.results import COMPILED, table_file

FROZEN = Path(__file__).parents[2] / "report" / "results" / COMPILED
GLOBAL_BATCH = 32
POLICIES: dict[str, dict[str, Any]] = {
    "balanced-4": {"kind": "balanced", "max_microbatches": 4},
    "token_budget": {"max_tokens_for_batch": 256},
    "bins": {"median_batch": 8},
    "pool": {"max_tokens_for_batch": 160},
}


def arms(policy: str, shapes: Sequence[int], alone: bool) -> list[Arm]:
    """Return the arms of a policy's launch, the baseline and its A/A first."""
    found = [] if alone else [Arm("static", EAGER), Arm("static", AGAIN)]
    if alone or policy != "static":
        found.append(Arm(policy, EAGER))
    if not alone:
        found.append(Arm(policy, DYNAMIC))
    return [*found, *(Arm(policy, STATIC, number) for number in shapes)]


def config_of(arm: Arm, given: argparse.Namespace, programs: Path) -> RunConfig:
    """Return the config of an arm. Raises ConfigError where its policy cannot be compiled for a menu."""
    table: dict[str, Any] = {}
    if arm.kind in (DYNAMIC, STATIC):
        table = {"kind": arm.kind, "backend": given.backend, "cache": str(programs), "on_failure": "stop"}
    if arm.kind == STATIC:
        table["shapes"] = arm.shapes
    data = {"path": str(given.folder / "sst2" / "train.tsv"), "text": "sentence"}
    return parse({
        "study": "compiled", "name": arm.name.replace(", N = ", "-").replace(" ", "-"), "outputs": str(given.output),
        "global_batch": GLOBAL_BATCH, "world_size": given.world_size,
        "data": {**data, "tokenizer": str(given.folder / "bert-uncased")},
        "policy": {"kind": arm.policy, **POLICIES.get(arm.policy, {})}, "model": {"name": given.model},
        "train": {"save_model": False}, "compile": table,
        **({"steps": given.steps} if given.steps else {"epochs": 1}),
    })  # fmt: skip


def measure(given: argparse.Namespace, policy: str, seed: int = 0) -> dict[str, Any]:
    """Return the facts and rows of a policy's launch, run in this process. Raises RunError where its baseline fails.

    ``seed``: as :func:`experiments.benchmarks.bench.launched` gives it; launch 0 empties the cache. All launches have
    the samples of one order, as others would need other programs.
    """
    cache = given.output.absolute() / "cache" / policy
    if seed == 0:
        shutil.rmtree(cache, ignore_errors=True)
    programs = cache / "programs"
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(programs)  # as the runs set it: the compiler starts there too
    os.environ["DDPSCHED_CACHE"] = str(cache)  # policy auto chooses by times of now
    planned, refused = dict[str, RunConfig](), dict[str, str]()
    wanted = arms(policy, given.shapes, given.alone)
    for arm in wanted:
        try:
            planned[arm.name] = config_of(arm, given, programs)
        except ConfigError as error:
            refused[arm.name] = str(error)
    start_s = start_compiler(given.backend)
    failed = run_interleaved(list(planned.values()), overwrite=True)
    refused |= {name: failed[config.name] for name, config in planned.items() if config.name in failed}
    if wanted[0].name in refused:
        raise RunError(f"{wanted[0].name}: {refused[wanted[0].name]}; without it there is nothing to compare with")
    ended = [
        Arm(arm.policy, arm.kind, arm.shapes, portable(" ".join(refused[arm.name].split())))
        if arm.name in refused
        else read_arm(arm, planned[arm.name].run_dir)
        for arm in wanted
    ]
    about = {"policy": policy, **stamp(), "backend": given.backend, "world_size": given.world_size}
    assert ended[0].records is not None, "the baseline has not failed"
    about |= {"global_batch": GLOBAL_BATCH, "num_steps": int(ended[0].records["step"].nunique())}
    return {**about, "start_s": start_s, "rows": rows(ended, start_s)}


def start_compiler(backend: str) -> float:
    """Return the seconds until a first small program is made, most of which are the compiler's own start."""
    import torch

    begin = perf_counter()
    layer = torch.nn.Linear(8, 8)
    layer.compile(backend=backend)
    layer(torch.ones(2, 8)).sum().backward()
    return perf_counter() - begin


def read_arm(arm: Arm, folder: Path) -> Arm:
    """Return the arm with what its run left."""
    records, environment = pd.read_parquet(folder / "records.parquet"), read_json(folder / "environment.json")
    return Arm(arm.policy, arm.kind, arm.shapes, None, records, environment)


def measured(given: argparse.Namespace, policy: str) -> dict[str, Any]:
    """Return the facts of a policy's first launch, and one row an arm with the seconds of all launches."""
    launches = launched(measure, given, policy, launches=given.launches)  # what is compiled stays in a process
    return {**launches[0], "num_launches": len(launches), "rows": joined([each["rows"] for each in launches])}


def freeze(model: str, policy: dict[str, Any], folder: Path) -> Path:
    """Write a policy into its model's file, in the place of an earlier one; return the path."""
    path = table_file(folder, model)
    before = read_json(path)["policies"] if path.exists() else []
    by_policy = {each["policy"]: each for each in before} | {policy["policy"]: policy}
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, {"model": model, "policies": list(by_policy.values())})
    return path


def markdown(model: str, policy: dict[str, Any]) -> str:
    """Return a policy as a table in Markdown, under a line of its facts; its verdicts are a family of their own."""
    (found,) = with_ratios([policy])
    title = f"{model}, {found['policy']}, {found['backend']}, launches: {found['num_launches']} of {found['num_steps']}"
    lines = [" | ".join(HEADINGS), "|".join(":--" if name in HEADINGS[:2] else "--:" for name in HEADINGS)]
    lines += [" | ".join(cells(row)) for row in found["rows"]]
    return "\n".join(
        [f"\n{title} steps, the compiler's start {found['start_s']:.1f} s\n", *(f"| {line} |" for line in lines)]
    )


def main(words: Sequence[str] | None = None) -> int:
    """Run the launches, print the table of each policy and freeze it; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmarks.compiled",
        description="Step times of a compiled model beside the eager one.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--policies", nargs="+", default=["static"])
    parser.add_argument("--shapes", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--steps", type=int, default=150)
    add_launches(parser)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--world-size", type=int, default=4)
    parser.add_argument("--alone", action="store_true", help="the policy's eager and static arms alone")
    parser.add_argument("--output", type=Path, default=Path("outputs/compiled"))
    parser.add_argument("--freeze", action="store_true", help="write each policy into report/results/compiled/")
    given = parser.parse_args(words)

    def body() -> None:
        for policy in given.policies:
            found = measured(given, policy)
            print(markdown(given.model, found), flush=True)
            if given.freeze:
                print(f"\nwritten to {freeze(given.model, found, FROZEN)}", flush=True)

    return guarded(body)


if __name__ == "__main__":
    sys.exit(main())
