"""Simulated step times beside measured ones, on steps that no number of the simulator was fitted to, as Markdown.

    python -m experiments.benchmarks.simulator [--data DIR] [--models tiny distilbert-base-uncased] [--steps 60]
        [--warm-up 20] [--policies static balanced] [--output FOLDER]

Of each model: `ddpsched calibrate` measures micro-batches, and `--network` all-reduces of two gloo ranks. Then four
virtual ranks, and two gloo ranks, train it for real, the policies in turn; simulated ranks run the same configs. Errors
are of the steps after ``--warm-up``: the makespan of a step is the time until all ranks have the gradient, without
optimizer and votes. Numbers of the simulator come from

- line: the calibration's fit, and the network;
- curve: with the curve beside the fit;
- speeds: and each rank's speed, the median of measured / simulated over the steps of the warm-up;
- fixed: and what a step takes beside these, the median of measured - simulated over the same steps.

DIR holds `sst2/train.tsv` and `bert-uncased/`; without it sentences are composed, as long as SST-2's.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as parquet

from ddpsched.cli import guarded
from ddpsched.config import RunConfig, dump, parse
from ddpsched.costs.network import BACKWARD, Network
from ddpsched.costs.step_times import Curve, StepTimes
from ddpsched.data.lengths import Lengths
from ddpsched.errors import ConfigError, RunError
from ddpsched.exchange import LocalExchange
from ddpsched.planning.planner import plan_steps
from ddpsched.planning.step_seconds import StepSeconds
from ddpsched.records import RECORDS
from ddpsched.simulated import clocks

Seconds = npt.NDArray[np.float64]
RANKS = {"virtual": 4, "distributed": 2}
UNSETTLED = 3  # first steps, while allocators settle, of which nothing is taken
BATCH = {"tiny": 64}  # samples of a step; of other models 16
TOKENS = {"tiny": 1024}  # of the largest micro-batch that is calibrated; of other models 512
MAX_LENGTH = 64  # SST-2's longest sentence has 66


@dataclass(frozen=True)
class Simulated:
    """Steps as simulated: ``compute``, (steps, ranks), seconds. ``last``: of the slowest rank's last micro-batch."""

    compute: Seconds
    last: Seconds
    network: Network

    def makespans(self, speeds: Seconds | float = 1.0, fixed_s: float = 0.0) -> Seconds:
        """Return the seconds of each step on ranks of these speeds."""
        compute, last = self.compute * speeds, self.last * np.mean(speeds)
        return compute.max(1) + self.network.exposed_s(compute.shape[1], BACKWARD * last) + fixed_s


@dataclass(frozen=True)
class Errors:
    """Errors of makespans, as shares of the measured ones."""

    mean: float
    p90: float
    bias: float

    @classmethod
    def of(cls, simulated: Seconds, measured: Seconds) -> "Errors":
        """Return the errors of these steps."""
        off = simulated / measured - 1
        return cls(float(np.abs(off).mean()), float(np.quantile(np.abs(off), 0.9)), float(np.median(off)))

    def __str__(self) -> str:
        return f"{self.mean:.1%} / {self.p90:.1%} ({self.bias:+.1%})"


def config_of(model: str, executor: str, policy: str, data: Path | None, steps: int, folder: Path) -> RunConfig:
    """Return the config of a real run."""
    table: dict[str, Any] = {"size": 4000, "max_length": MAX_LENGTH}
    if data is not None:
        table = {"path": str(data / "sst2" / "train.tsv"), "text": "sentence", "max_length": MAX_LENGTH}
        table["tokenizer"] = str(data / "bert-uncased")
    return parse(
        {
            "name": f"{policy}-{executor}", "study": model.replace("/", "-"), "outputs": str(folder), "steps": steps,
            "global_batch": BATCH.get(model, 16), "world_size": RANKS[executor], "data": table,
            "model": {"name": model}, "policy": {"kind": policy}, "executor": {"kind": executor, "device": "cpu"},
            "train": {"save_model": False}, "order": {"kind": "shuffled"},
        }
    )  # fmt: skip


def launch(words: Sequence[str], ranks: int = 1) -> None:
    """Run a module of this checkout, under torchrun where it has several ranks. Raises RunError where it fails."""
    start = [sys.executable, "-m"]
    if ranks > 1:
        start += ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m"]
    done = subprocess.run([*start, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunError(f"{' '.join(words)} failed: {done.stderr[-2000:]}")


def measured(folder: Path) -> tuple[Seconds, Seconds, list[str]]:
    """Return compute seconds and makespans of a run, (steps, ranks) and (steps,), and each step's digest of its plan."""
    columns = ["step", "rank", "world_size", "compute_s", "wait_s", "plan_hash"]
    table = parquet.read_table(folder / RECORDS, columns=columns).to_pandas().sort_values(["step", "rank"])
    ranks = int(table["world_size"].iloc[0])
    compute = table["compute_s"].to_numpy().reshape(-1, ranks)
    ready = compute + table["wait_s"].to_numpy().reshape(-1, ranks)
    return compute, ready.max(1), table["plan_hash"].tolist()[::ranks]


def simulate(config: RunConfig, lengths: Lengths, times: StepTimes, network: Network) -> tuple[Simulated, list[str]]:
    """Return the steps of a run as simulated ranks take them, and each step's digest of its plan."""
    compute, last, digests = [], [], []
    for plan in plan_steps(config.plan_spec(), lengths, LocalExchange(config.world_size)):
        step = StepSeconds(plan, lengths, times.cost, times.padded_curve)
        compute.append(step.compute)
        last.append(step.last_of_slowest())
        digests.append(plan.digest_hex)
    return Simulated(np.array(compute), np.array(last), network), digests


def compare(config: RunConfig, calibration: Path, network: Path, warm_up: int) -> dict[str, Errors]:
    """Return the errors of each way to simulate a run that has ended, on the steps after the warm-up."""
    compute, makespans, digests = measured(config.run_dir)
    clock = {"kind": "simulated", "calibration": str(calibration)}
    if config.executor.kind == "distributed":
        clock["network"] = str(network)
    times, between = clocks(parse({**config.model_dump(exclude_none=True), "executor": clock}))
    lengths = config.load_samples().train
    simulated, planned = simulate(config, lengths, times, between)
    if planned != digests:
        raise RunError(f"{config.run_dir}: other plans were simulated than ran")
    line, _ = simulate(config, lengths, times.model_copy(update={"padded_curve": Curve()}), between)
    seen, after = slice(UNSETTLED, warm_up), slice(warm_up, None)
    speeds = np.median(compute[seen] / simulated.compute[seen], 0)
    fixed = float(np.median(makespans[seen] - simulated.makespans(speeds)[seen]))
    print(f"  {config.name}: speeds {np.round(speeds, 3).tolist()}, fixed {1e3 * fixed:.2f} ms, makespan "
          f"{1e3 * makespans[after].mean():.1f} ms, network {1e3 * float(between.exposed_s(config.world_size)):.1f} ms", file=sys.stderr)
    np.savez(config.run_dir / "x.npz", compute=compute, makespans=makespans, sim=simulated.compute, last=simulated.last, line=line.compute)
    found = {
        "line": line.makespans(), "curve": simulated.makespans(), "speeds": simulated.makespans(speeds),
        "fixed": simulated.makespans(speeds, fixed),
    }  # fmt: skip
    return {name: Errors.of(each[after], makespans[after]) for name, each in found.items()}


def settings(given: argparse.Namespace, folder: Path) -> Iterator[tuple[str, dict[str, Errors]]]:
    """Calibrate, run, and yield the errors of each setting."""
    for model in given.models:
        calibration, network = folder / f"{model}.json", folder / f"{model}-network.json"
        for executor, ranks in RANKS.items():
            configs = [config_of(model, executor, each, given.data, given.steps, folder) for each in given.policies]
            files = []
            for config in configs:
                files.append(folder / f"{model}-{config.name}.toml")
                files[-1].write_text(dump(config))
            if executor == "virtual":
                tokens = str(TOKENS.get(model, 512))
                launch(["ddpsched", "calibrate", str(files[0]), "--output", str(calibration), "--tokens", tokens, "--overwrite", *(["--passes", "4"] if model!="tiny" else [])])
                launch(["experiments.interleaved", *map(str, files), "--overwrite"])
            else:
                words = ["ddpsched", "calibrate", str(files[0]), "--network", "--output", str(network), "--overwrite"]
                launch(words, ranks)
                launch(["experiments.interleaved", *map(str, files), "--overwrite"], ranks)
            for config in configs:
                title = f"{model}, {config.policy.kind}, {executor}, G = {ranks}"
                yield title, compare(config, calibration, network, given.warm_up)


def main(words: Sequence[str]) -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="DIR, for real SST-2")
    parser.add_argument("--models", nargs="+", default=["tiny", "distilbert-base-uncased"])
    parser.add_argument("--policies", nargs="+", default=["static", "balanced"])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warm-up", type=int, default=20)
    parser.add_argument("--output", type=Path, help="folder of the calibrations and runs; else a temporary one")
    given = parser.parse_args(words)

    def body() -> None:
        with tempfile.TemporaryDirectory() as temporary:
            heads = "line", "curve", "speeds", "fixed"
            print(f"| mean / P90 error (median) | {' | '.join(heads)} |\n|:--|{'--:|' * len(heads)}")
            for title, errors in settings(given, given.output or Path(temporary)):
                print(f"| {title} | {' | '.join(str(errors[each]) for each in heads)} |", flush=True)

    return guarded(body)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
