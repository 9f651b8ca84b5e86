"""Simulated step times beside measured ones, on steps that no number of the simulator was fitted to, as Markdown.

    python -m experiments.benchmarks.simulator [--data DIR] [--models tiny distilbert-base-uncased] [--steps 60]
        [--warm-up 20] [--repeats N] [--policies static balanced] [--output FOLDER] [--freeze FILE]

Of each model: `ddpsched calibrate` measures micro-batches, and `--network` all-reduces of two gloo ranks. Then four
virtual ranks, and two gloo ranks, train it for real, ``--repeats`` times, the policies in turn; simulated ranks run
the same configs. The makespan of a step is the time until all ranks have the gradient, without optimizer and votes, and
as measured the mean of the middle half of its repeats: a single one differs from the next by more than what is asked
for here, and a median of ten by more than this mean. Repeats follow one another, so a minute in which the machine is
slow falls on another step of each. The shorter the steps, the more they differ, so the tiny model has more repeats.
Errors, mean / P90, are of the steps after ``--warm-up``. Numbers of the simulator come from

- line: the calibration's fit, and the network;
- curve: with the curve beside the fit, as executor.calibration and executor.network of simulated ranks;
- speeds: and each rank's speed, the median of measured / simulated over the warm-up, as executor.slowness;
- records: instead of the calibration, the cost fitted to the warm-up's records, as `ddpsched fit` does;
- noise: and what ranks differ by beside it, as a step waits for the slowest: measured / fitted over a step's median;
- fixed: and what a step takes beside both, as messages do, the median of measured - fitted over the warm-up.

A/A is what every other repeat's steps differ by from those of the rest, over the ratio of their medians over the steps:
no simulator does better by far.
``wall`` is the clock; ``processor``, the largest rank's processor time, in which other processes count less, and the
work of messages, but no waiting for them.

DIR holds `sst2/train.tsv` and `bert-uncased/`; without it sentences are composed, as long as SST-2's. ``--freeze``
writes the numbers as JSON, for the report. FOLDER keeps calibrations and runs: cut off, the same command goes on.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as parquet
from scipy.stats import trim_mean

from ddpsched.arguments import check_output
from ddpsched.cli import guarded
from ddpsched.config import RunConfig, dump, parse
from ddpsched.costs.network import BACKWARD, Network
from ddpsched.costs.regression import fit_affine_quadratic
from ddpsched.costs.step_times import Curve, StepTimes
from ddpsched.data.lengths import Lengths
from ddpsched.errors import ConfigError, RunError
from ddpsched.exchange import LocalExchange
from ddpsched.planning.planner import plan_steps
from ddpsched.planning.step_seconds import StepSeconds
from ddpsched.records import RECORDS, write_json
from ddpsched.run_folder import read_status
from ddpsched.simulated import clocks
from experiments.trainers.frozen import machine

Seconds = npt.NDArray[np.float64]
RANKS = {"virtual": 4, "distributed": 2}
UNSETTLED = 3  # first steps, while allocators settle, of which nothing is taken
BATCH = {"tiny": 64}  # samples of a step; of other models 16
REPEATS = {"tiny": 40}  # runs of each policy; of other models 10
MEASURED = {"tiny": (1024, 12)}  # tokens of the largest micro-batch of a calibration, and its passes
CLOCKS, WAYS = ("wall", "processor"), ("line", "curve", "speeds", "records", "noise", "fixed")
DRAWS = 32
MAX_LENGTH = 64  # SST-2's longest sentence has 66


@dataclass(frozen=True)
class Measured:
    """Steps of a run: seconds that ranks computed, (steps, ranks), and makespans, (steps,), by either clock.

    ``counts``, ``longest``: of each rank's one micro-batch, (steps, ranks).
    """

    compute: dict[str, Seconds]
    makespans: dict[str, Seconds]
    counts: npt.NDArray[np.int64]
    longest: npt.NDArray[np.int64]
    digests: list[str]

    @classmethod
    def of(cls, folder: Path) -> "Measured":
        """Read a run's records."""
        numbers = ["compute_s", "cpu_s", "wait_s", "num_samples", "max_length"]
        names = ["step", "rank", "world_size", "plan_hash", *numbers]
        table = parquet.read_table(folder / RECORDS, columns=names).to_pandas().sort_values(["step", "rank"])
        ranks = int(table["world_size"].iloc[0])
        wall, processor, waits, counts, longest = (table[name].to_numpy().reshape(-1, ranks) for name in numbers)
        makespans = {"wall": (wall + waits).max(1), "processor": processor.max(1)}
        digests = table["plan_hash"].tolist()[::ranks]
        return cls({"wall": wall, "processor": processor}, makespans, counts, longest, digests)

    @classmethod
    def middle(cls, runs: Sequence["Measured"]) -> "Measured":
        """Return the means of the middle half of several runs of the same steps, step by step."""

        def over(name: str) -> dict[str, Seconds]:
            return {clock: trim_mean([getattr(run, name)[clock] for run in runs], 0.25) for clock in runs[0].compute}

        first = runs[0]
        return cls(over("compute"), over("makespans"), first.counts, first.longest, first.digests)


@dataclass(frozen=True)
class Simulated:
    """Steps as simulated: ``compute``, (steps, ranks), seconds. ``last``: of the slowest rank's last micro-batch.

    ``network``: None for steps whose messages take no time.
    """

    compute: Seconds
    last: Seconds
    network: Network | None

    def fitted(self, found: Measured, clock: str, seen: slice) -> "Simulated":
        """Return these steps with the cost that is fitted to some measured ones."""
        count, longest = found.counts, found.longest
        fit = fit_affine_quadratic(count[seen].ravel(), longest[seen].ravel(), found.compute[clock][seen].ravel())
        return replace(self, compute=np.asarray(fit.model.seconds(count, longest)))

    def makespans(self, speeds: Seconds | float = 1.0, noise: Seconds | None = None) -> Seconds:
        """Return the seconds of each step on ranks of these speeds; of draws of their ``noise``, as of repeats."""
        ranks = self.compute.shape[1]
        compute = self.compute * speeds
        if noise is None:
            slowest = compute.max(1)
        else:
            drawn = np.random.default_rng(0).choice(noise, (DRAWS, *compute.shape))
            slowest = trim_mean((compute * drawn).max(2), 0.25)
        if self.network is None:
            return slowest
        return slowest + self.network.exposed_s(ranks, BACKWARD * self.last * np.mean(speeds))


@dataclass(frozen=True)
class Errors:
    """Errors of makespans, as shares of the measured ones."""

    mean: float
    p90: float

    @classmethod
    def of(cls, simulated: Seconds, measured: Seconds) -> "Errors":
        """Return the errors of these steps."""
        off = np.abs(simulated / measured - 1)
        return cls(float(off.mean()), float(np.quantile(off, 0.9)))

    def __str__(self) -> str:
        return f"{self.mean:.1%} / {self.p90:.1%}"


def config_of(
    model: str, executor: str, policy: str, data: Path | None, steps: int, folder: Path, repeat: int = 0
) -> RunConfig:
    """Return the config of a real run."""
    table: dict[str, Any] = {"size": 4000, "max_length": MAX_LENGTH}
    if data is not None:
        table = {"path": str(data / "sst2" / "train.tsv"), "text": "sentence", "max_length": MAX_LENGTH}
        table["tokenizer"] = str(data / "bert-uncased")
    name, study = f"{policy}-{executor}-{repeat}", model.replace("/", "-")
    return parse(
        {
            "name": name, "study": study, "outputs": str(folder), "steps": steps,
            "global_batch": BATCH.get(model, 16), "world_size": RANKS[executor], "data": table,
            "model": {"name": model}, "policy": {"kind": policy}, "executor": {"kind": executor, "device": "cpu"},
            "train": {"save_model": False}, "order": {"kind": "shuffled"},
        }
    )  # fmt: skip


def finished(file: Path, config: RunConfig) -> bool:
    """Return whether a call that was cut off has run this config, which it wrote into ``file``."""
    same = file.exists() and file.read_text(encoding="utf-8") == dump(config)
    return same and read_status(config.run_dir)["state"] == "done"


def launch(words: Sequence[str], ranks: int = 1) -> None:
    """Run a module of this checkout, under torchrun where it has several ranks. Raises RunError where it fails."""
    start = [sys.executable, "-m"]
    if ranks > 1:
        start += ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m"]
    done = subprocess.run([*start, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunError(f"{' '.join(words)} failed: {done.stderr[-2000:]}")


def simulate(
    config: RunConfig, lengths: Lengths, times: StepTimes, network: Network | None
) -> tuple[Simulated, list[str]]:
    """Return the steps of a run as simulated ranks take them, and each step's digest of its plan."""
    compute, last, digests = [], [], []
    for plan in plan_steps(config.plan_spec(), lengths, LocalExchange(config.world_size)):
        step = StepSeconds(plan, lengths, times.cost, times.padded_curve)
        compute.append(step.compute)
        last.append(step.last_of_slowest())
        digests.append(plan.digest_hex)
    return Simulated(np.array(compute), np.array(last), network), digests


def errors(
    simulated: Simulated, line: Simulated, runs: Sequence[Measured], clock: str, warm_up: int
) -> dict[str, Errors]:
    """Return the errors of each way to simulate these steps by a clock, on the steps after the warm-up."""
    found = Measured.middle(runs)
    compute, makespans = found.compute[clock], found.makespans[clock]
    seen, after = slice(UNSETTLED, warm_up), slice(warm_up, None)
    ratios = compute[seen] / simulated.compute[seen]
    fitted = simulated.fitted(found, clock, seen)
    off = [run.compute[clock][seen] / fitted.compute[seen] for run in runs]
    noise = np.concatenate([(each / np.median(each, 1, keepdims=True)).ravel() for each in off])
    noisy = fitted.makespans(noise=noise)
    fixed = float(np.median(makespans[seen] - noisy[seen]))
    ways = {
        "line": line.makespans(), "curve": simulated.makespans(),
        "speeds": simulated.makespans(np.median(ratios, 0)), "records": fitted.makespans(),
        "noise": noisy, "fixed": noisy + fixed,
    }  # fmt: skip
    return {name: Errors.of(each[after], makespans[after]) for name, each in ways.items()}


def again(runs: Sequence[Measured], clock: str, warm_up: int) -> Errors:
    """Return how far one half of the runs is from the other, over the ratio of their medians in the warm-up."""
    one, other = (Measured.middle(half).makespans[clock] for half in (runs[::2], runs[1::2]))
    ratio = np.median(other[UNSETTLED:warm_up]) / np.median(one[UNSETTLED:warm_up])
    return Errors.of(ratio * one[warm_up:], other[warm_up:])


@dataclass(frozen=True)
class Row:
    """A policy's errors by one clock; ``errors``: by the numbers that the simulator has, ``again``: of A/A."""

    model: str
    executor: str
    world_size: int
    policy: str
    clock: str
    step_s: float
    repeats: int
    errors: dict[str, Errors]
    again: Errors

    def cells(self) -> list[str]:
        """Return the cells of the table."""
        setting = f"{self.model}, {self.executor}, G = {self.world_size}"
        return [
            setting, self.policy, self.clock, f"{1e3 * self.step_s:.1f}",
            *(str(self.errors[way]) for way in WAYS), str(self.again),
        ]  # fmt: skip


def rows(configs: Sequence[RunConfig], calibration: Path, network: Path, warm_up: int) -> Iterator[Row]:
    """Yield each clock of a policy whose runs, its repeats, have ended."""
    runs, config = [Measured.of(each.run_dir) for each in configs], configs[0]
    clock = {"kind": "simulated", "calibration": str(calibration)}
    if config.executor.kind == "distributed":
        clock["network"] = str(network)
    times, between = clocks(parse({**config.model_dump(exclude_none=True), "executor": clock}))
    lengths = config.load_samples().train
    flat = times.model_copy(update={"padded_curve": Curve()})
    for name in CLOCKS:
        net = between if name == "wall" else None
        simulated, line = (simulate(config, lengths, each, net) for each in (times, flat))
        if any(run.digests != simulated[1] for run in runs):
            raise RunError(f"{config.run_dir}: other plans were simulated than ran")
        step_s = float(Measured.middle(runs).makespans[name][warm_up:].mean())
        setting = str(config.model.name), config.executor.kind, config.world_size
        ways = errors(simulated[0], line[0], runs, name, warm_up)
        yield Row(*setting, config.policy.kind, name, step_s, len(runs), ways, again(runs, name, warm_up))


def settings(given: argparse.Namespace, folder: Path) -> Iterator[Row]:
    """Calibrate, run, and yield each setting, policy and clock."""
    for model in given.models:
        repeats = range(given.repeats or REPEATS.get(model, 10))
        name = model.replace("/", "-")
        calibration, network = folder / f"{name}.json", folder / f"{name}-network.json"
        for executor, ranks in RANKS.items():
            arms = [
                [config_of(model, executor, policy, given.data, given.steps, folder, each) for each in repeats]
                for policy in given.policies
            ]
            turns = [[arm[each] for arm in arms] for each in repeats]
            files = [[folder / f"{name}-{config.name}.toml" for config in turn] for turn in turns]
            left = [
                started for started, turn in zip(files, turns, strict=True) if not all(map(finished, started, turn))
            ]
            for file, config in zip(chain(*files), chain(*turns), strict=True):
                file.write_text(dump(config), encoding="utf-8")
            words = ["ddpsched", "calibrate", str(files[0][0]), "--overwrite", "--output"]
            tokens, passes = (str(each) for each in MEASURED.get(model, (512, 4)))
            if executor == "virtual" and not calibration.exists():
                launch([*words, str(calibration), "--tokens", tokens, "--passes", passes])
            elif executor == "distributed" and not network.exists():
                launch([*words, str(network), "--network"], ranks)
            processes = ranks if executor == "distributed" else 1
            for turn in left:
                launch(["experiments.interleaved", *map(str, turn), "--overwrite"], processes)
            for arm in arms:
                yield from rows(arm, calibration, network, given.warm_up)


def main(words: Sequence[str]) -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmarks.simulator",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, help="DIR, for real SST-2")
    parser.add_argument("--models", nargs="+", default=["tiny", "distilbert-base-uncased"])
    parser.add_argument("--policies", nargs="+", default=["static", "balanced"])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warm-up", type=int, default=20)
    parser.add_argument("--repeats", type=int, help="runs of each policy, one after another; at least 2")
    parser.add_argument("--output", type=Path, help="keeps calibrations and runs; else a temporary folder")
    parser.add_argument("--freeze", type=Path, help="JSON file to write the numbers into")
    given = parser.parse_args(words)

    def body() -> None:
        if not UNSETTLED < given.warm_up < given.steps:
            fault = f"--warm-up {given.warm_up}: must be above {UNSETTLED} and below --steps {given.steps}"
            raise ConfigError(f"{fault}; the steps after it are those that errors are of")
        if given.repeats is not None and given.repeats < 2:
            raise ConfigError(
                f"--repeats {given.repeats}: must be at least 2, so that they can be held beside each other"
            )
        if given.freeze is not None:
            check_output(given.freeze, True, "simulator.json")
        if given.output is not None:
            given.output.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as temporary:
            heads = "model, executor", "policy", "clock", "step ms", *WAYS, "A/A"
            print(f"| {' | '.join(heads)} |\n|:--|:--|:--|{'--:|' * (len(heads) - 3)}")
            found = []
            for row in settings(given, given.output or Path(temporary)):
                print(f"| {' | '.join(row.cells())} |", flush=True)
                found.append(asdict(row))
        if given.freeze is not None:
            about = {"machine": machine(), "data": "SST-2" if given.data else "composed sentences"}
            write_json(given.freeze, about | {"steps": given.steps, "warm_up": given.warm_up, "rows": found})

    return guarded(body)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
