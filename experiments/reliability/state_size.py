"""Whether a checkpoint's state beside weights, moments and ledger stays small, whatever the policy and its windows.

``python -m experiments.reliability.state_size [--samples 1000000] [--freeze]``: a run of 64 ranks is planned for some
steps of so many samples, and writes a checkpoint as every run does, with an empty file for the tensors of each rank.
state.json and manifest.json together may take 64 KiB.

A sample that waits takes log2(N) bits, and a third more as text: of a million samples 3.3 bytes. So 64 KiB hold about
13,000 waiting samples of 64 ranks; with larger windows, such as 256 samples on each of them, the state is larger.
"""

import itertools
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, cast

import numpy as np
import typer

from ddpsched.config import RunConfig, parse
from ddpsched.costs.rank_speed import Speed
from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.data.lengths import KnownLengths
from ddpsched.exchange import LocalExchange
from ddpsched.planning.planner import plan_steps
from ddpsched.records import StepRecord, write_json
from ddpsched.recovery.checkpoints import MANIFEST, STATE
from ddpsched.recovery.keeper import Keeper
from ddpsched.recovery.start import Start, find_start, identity_of
from experiments.reliability.findings import Finding, Freeze, report

MOST, RANKS, STEPS = 64 * 2**10, 64, 4
FILLED = {"max_tokens_for_batch": 1024}
POLICIES: dict[str, dict[str, Any]] = {
    "static": {"kind": "static"},
    "minmax, K = 64": {"kind": "minmax", "prefetch": 64},
    "minmax, K = 128": {"kind": "minmax", "prefetch": 128},
    "balanced": {"kind": "balanced", "max_microbatches": 4},
    "packed": {"kind": "packed", "lookahead": 4},
    "token_budget": {"kind": "token_budget", **FILLED},
    "bins": {"kind": "bins", "median_batch": 8},
    "bins, replacement": {"kind": "bins", "median_batch": 8, "replacement": True},
    "pool of 64": {"kind": "pool", "pool_size": 64, **FILLED},
    "pool of 128": {"kind": "pool", "pool_size": 128, **FILLED},
    "pool of 4096, 4 ranks": {"kind": "pool", "pool_size": 4096, **FILLED},
}
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


class NoTensors:
    """A snapshot of so many ranks without tensors: its files are there, and empty."""

    is_shared = False

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks

    def take(self) -> None:
        """Do nothing."""

    def write(self, folder: Path, share: int, shares: int) -> None:
        """Write the files, and each other rank's word that it has written its own."""
        for rank in range(1, self._ranks):
            write_json(folder / f"rank-{rank:05d}.json", {})
        for kind, rank in itertools.product(("weights", "moments"), range(self._ranks)):
            (folder / f"{kind}-{rank:05d}-of-{self._ranks:05d}.safetensors").touch()


def config_of(outputs: Path, policy: dict[str, Any], ranks: int) -> RunConfig:
    """Return the config of a run whose ranks differ in speed."""
    return parse(
        {
            "outputs": str(outputs), "world_size": ranks, "global_batch": 16 * ranks, "steps": STEPS, "policy": policy,
            "executor": {"slowness": [1.0 + rank / 7 for rank in range(ranks)]},
            "train": {"checkpoint_every": STEPS},
        }
    )  # fmt: skip


def state_bytes(folder: Path, config: RunConfig, lengths: KnownLengths) -> int:
    """Return the bytes of a checkpoint of this run beside tensors and ledger, once it was read as it was written."""
    exchange = LocalExchange(config.world_size)
    speeds = [Speed() for _ in exchange.ranks]  # as runs with cost.online keep them
    config.run_dir.mkdir(parents=True)
    (config.run_dir / "records-rank0.jsonl").touch()  # it is synced before a checkpoint
    begin = Start(config.run_dir, identity_of(config, config.load_samples()))
    keeper = Keeper(config, 0, exchange, NoTensors(config.world_size), speeds, begin)
    after, records = None, cast("list[StepRecord]", [SimpleNamespace(mode="virtual", lr=1e-3)])
    for plan in plan_steps(config.plan_spec(), lengths, exchange):
        for rank, speed in enumerate(speeds):
            speed.add(10**6, 1e-3 * (1 + rank / 7))
        keeper.commit(plan, records)
        keeper.checkpoint(plan, dict.fromkeys(range(config.world_size), 2**40))
        after = plan.after
    keeper.finish()
    keeper.close()
    start = find_start(config.run_dir, begin.identity)
    assert start.checkpoint is not None
    assert after is not None
    assert start.position.as_dict() == after.as_dict(), f"{folder} holds another position than it was given"
    return sum((start.checkpoint / name).stat().st_size for name in (STATE, MANIFEST))


@app.command()
def main(
    samples: Annotated[int, typer.Option(min=20_000, help="of the data")] = 1_000_000,
    freeze: Freeze = False,
) -> None:
    """Write a checkpoint for each policy, and measure it."""
    lengths, sizes = KnownLengths(sst2_lengths(samples, np.random.default_rng(0))), dict[str, int]()
    for name, policy in POLICIES.items():
        with tempfile.TemporaryDirectory() as folder:
            config = config_of(Path(folder), policy, 4 if "4 ranks" in name else RANKS)
            sizes[name] = state_bytes(Path(folder), config, lengths)
        print(f"{name}: {sizes[name]:,} bytes", flush=True)
    largest = max(sizes, key=sizes.__getitem__)
    finding = Finding(
        "state_size",
        "Checkpoint state beside weights, moments and ledger",
        "at most 64 KiB",
        f"at most {sizes[largest] / 2**10:.1f} KiB ({largest}) of {len(sizes)} policies, on {RANKS} ranks where no "
        f"other number is named, of {samples:,} samples; larger where more than 13,000 samples wait",
        sizes[largest] <= MOST,
        f"python -m experiments.reliability.state_size --samples {samples}",
        sizes,
    )
    raise typer.Exit(report(finding, freeze))


if __name__ == "__main__":
    app()
