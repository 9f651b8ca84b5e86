"""Planning time of policy pool, and the share of real tokens in its micro-batches.

    python -m experiments.benchmarks.pool [DIR] [--samples 67349] [--rounds 8] [--launches 5]

DIR holds `sst2/train.tsv` and `bert-uncased/`; without it lengths are drawn from SST-2's histogram. Eight ranks, a
budget of 32 times the mean length, one epoch. `us/sample` is planning as a whole, from the epoch's lengths to plans
with their digests. `source` is cosmos-rl's dataset with the same pool, budget and way on one rank's share, where it is
installed (extra `peers`). For each pool and way our planning, the same again (A/A) and the source run in turn; ratios
are to our planning, their intervals of launches, each a process, and the verdicts' family is the whole table.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from ddpsched.config import RunConfig, parse
from ddpsched.costs.cost_model import Int
from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.data.length_files import read_lengths
from ddpsched.data.lengths import KnownLengths
from ddpsched.errors import PeerMissing
from ddpsched.exchange import LocalExchange
from ddpsched.peers.packages import need_alone
from ddpsched.planning.planner import plan_steps
from ddpsched.planning.policies.pool import Pool
from ddpsched.step_plan import StepPlan
from ddpsched.terminal import plain_console
from experiments.benchmarks.bench import AA, Judged, Seconds, add_options, in_turn, judged, launched

RANKS, PER_RANK, POOLS = 8, 32, (32, 256)
SOURCE_SAMPLES = 4000  # of cosmos-rl's dataset, which is slower
WAYS: dict[str, dict[str, Any]] = {
    "prefer_closest": {},
    "prefer_first": {"strategy": "prefer_first"},
    "sequence_packing": {"sequence_packing": True},
}
CASES = [(pool_size, way) for pool_size in POOLS for way in WAYS]
OURS, SOURCE = "ours", "source"


def config_of(lengths: Int, pool_size: int, way: str) -> RunConfig:
    """Return the config of an epoch with this pool. ``way``: a key of ``WAYS``."""
    budget = round(PER_RANK * float(lengths.mean()))
    policy = {"kind": "pool", "pool_size": pool_size, "max_tokens_for_batch": budget, **WAYS[way]}
    return parse({"epochs": 1, "world_size": RANKS, "policy": policy})


def planned(config: RunConfig, lengths: Int) -> tuple[float, list[StepPlan]]:
    """Return the planning time in seconds a sample, and the plans."""
    begin = perf_counter()
    plans = list(plan_steps(config.plan_spec(), KnownLengths(lengths), LocalExchange(RANKS)))
    return (perf_counter() - begin) / len(lengths), plans


def used(plans: list[StepPlan], lengths: Int, config: RunConfig) -> float:
    """Return real tokens over padded ones, or over the budget where rows are packed."""
    micro = [lengths[m.ids] for plan in plans for rank in plan.ranks for m in rank]
    assert isinstance(config.policy, Pool)
    whole = (
        len(micro) * config.policy.max_tokens_for_batch
        if config.policy.packs
        else sum(len(each) * int(each.max()) for each in micro)
    )
    return float(lengths.sum() / whole)


def source(lengths: Int, pool_size: int, way: str) -> Callable[[], float] | None:
    """Return a function that returns cosmos-rl's time in seconds a sample, or None where it is not installed."""
    try:
        module = need_alone("cosmos_rl.dispatcher.data.load_balanced_dataset", "--no-deps cosmos-rl==0.4.7")
    except PeerMissing:
        return None
    import logging

    logging.getLogger("cosmos").setLevel(logging.WARNING)
    samples = [{"input_ids": range(length)} for length in lengths[:SOURCE_SAMPLES].tolist()]

    def seconds() -> float:
        dataset = module.LoadBalancedDataset(
            samples,
            pool_size=pool_size,
            max_tokens_for_batch=round(PER_RANK * float(lengths.mean())),
            infinite_loop=False,
            batching_strategy="prefer_first" if way == "prefer_first" else "prefer_closest",
            seq_packing_enabled=way == "sequence_packing",
        )
        begin = perf_counter()
        for _ in dataset:
            pass
        return (perf_counter() - begin) / len(samples)

    return seconds


def measure(lengths: Int, rounds: int, seed: int = 0) -> list[Seconds]:
    """Return the times of each case in turn, in seconds a sample: one launch."""
    return [in_turn(ways(lengths, *case), rounds, seed) for case in CASES]


def ways(lengths: Int, pool_size: int, way: str) -> dict[str, Callable[[], float]]:
    """Return by name what plans with this pool: our policy, and the source where it is installed."""
    config = config_of(lengths, pool_size, way)
    theirs = source(lengths, pool_size, way)
    ours = {OURS: lambda: planned(config, lengths)[0]}
    return ours if theirs is None else {**ours, SOURCE: theirs}


def report(lengths: Int, launches: Sequence[Sequence[Seconds]]) -> Table:
    """Return the table, a line for each pool and way.

    ``lengths``: (samples,), in tokens. ``launches``: of each what ``measure`` returned.
    """
    shown = Table(
        title=f"{len(lengths):,} samples, {RANKS} ranks, budget {round(PER_RANK * float(lengths.mean()))} tokens",
        caption="used: real tokens over padded ones; packed: over the budget, the epoch's last row included",
        box=box.SIMPLE_HEAD,
        title_justify="left",
    )
    for name in ("pool", "way", "used", "us/sample", "A/A (95 %)", "source us/sample", "source / ours (95 %)"):
        shown.add_column(name, justify="left" if name == "way" else "right", no_wrap=True)
    shown.add_column("source is")
    missing = Judged(float("nan"), verdict="not installed")
    for case, times in zip(CASES, judged(list(zip(*launches, strict=True))), strict=True):
        config, theirs = config_of(lengths, *case), times.get(SOURCE, missing)
        shown.add_row(
            str(case[0]),
            case[1],
            f"{used(planned(config, lengths)[1], lengths, config):.4f}",
            f"{times[OURS].seconds * 1e6:.2f}",
            f"{times[AA].text} {times[AA].verdict}",
            "-" if theirs is missing else f"{theirs.seconds * 1e6:.1f}",
            theirs.text,
            theirs.verdict,
        )
    return shown


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmarks.pool",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--samples", type=int, default=67_349, help="drawn where no folder is given")
    add_options(parser)
    options = parser.parse_args()
    if options.folder is None:
        lengths = sst2_lengths(options.samples, np.random.default_rng(0))
    else:
        tokenizer = str(options.folder / "bert-uncased")
        lengths = read_lengths(options.folder / "sst2" / "train.tsv", texts=("sentence",), tokenizer=tokenizer)
    launches = launched(measure, lengths, options.rounds, launches=options.launches)
    plain_console(at_least=160).print(report(lengths, launches))


if __name__ == "__main__":
    main()
