"""The price of gathering a split sample, of this model on these ranks: cost.gather_alpha and cost.gather_beta.

    python -m experiments.benchmarks.gather_price CONFIG [key=value ...] [--ranks 2] [--rounds 10]
    torchrun --nproc-per-node 8 -m experiments.benchmarks.gather_price CONFIG        on the ranks of a launch

For groups of 2, 4, ... ranks and samples of up to data.max_length tokens, each layer's keys and values are gathered,
and their gradients summed, as policy "split" does. A time is the slowest rank's, and the smallest of all rounds, which
visit the points in another order each time. gather_alpha + gather_beta * length * (count - 1) / count is fitted to
them, without negative terms, by relative errors. The numbers are in the unit of the config's cost: seconds, or padded
tokens by what this model takes for one on a rank.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
from rich import box
from rich.table import Table
from scipy.optimize import nnls

from ddpsched.cli import guarded
from ddpsched.config import RunConfig, load
from ddpsched.costs.calibration_grid import GridPoint
from ddpsched.errors import ConfigError
from ddpsched.local_ranks import answers, run_ranks
from ddpsched.parts import head_and_tail
from ddpsched.terminal import plain_console
from ddpsched.world import World

LENGTHS = 4  # of samples, each twice as long as the one before
IN_SECONDS = ("affine_quadratic", "calibrated")  # kinds of cost


@dataclass(frozen=True)
class Times:
    """Seconds of each point, a (ranks, tokens) of a split sample, and of a token of this model."""

    points: list[tuple[int, int]]
    seconds: list[float]
    token_s: float


def fit(points: Sequence[tuple[int, int]], seconds: Sequence[float]) -> npt.NDArray[np.float64]:
    """Return alpha in seconds and beta in seconds a token, neither negative, (2,): least squares of relative errors."""
    received = [length * (count - 1) / count for count, length in points]
    rows = np.stack([np.ones(len(points)), np.array(received)], axis=1) / np.array(seconds)[:, None]
    found: npt.NDArray[np.float64] = nnls(rows, np.ones(len(points)))[0]
    return found


def measure_times(config: RunConfig, rounds: int) -> Times:
    """Return the times, the same on each rank of the process group; every rank calls it."""
    import torch
    import torch.distributed as dist

    from ddpsched.training.calibrate import measure
    from ddpsched.training.clock import Clock, pick_device
    from ddpsched.training.group_exchange import start_group
    from ddpsched.training.learner import Learner
    from ddpsched.training.part_groups import GroupParts
    from ddpsched.training.sync.synchroniser import CollectiveLog

    world = World.detect()
    device = pick_device(config, world.local_rank)
    start_group(device, world, config.executor.timeout_s)
    learner = Learner(config, config.load_samples(), device)
    shape: Any = learner.model.config
    heads = getattr(shape, "num_key_value_heads", None) or shape.num_attention_heads
    width = 2 * (getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads)
    dtype = learner.autocast or next(learner.model.parameters()).dtype
    sizes = [2**power for power in range(1, 12) if 2**power < world.size] + [world.size]
    groups = {size: dist.new_group(list(range(size))) for size in sizes}
    longest = config.data.max_length
    lengths = sorted({max(world.size, longest >> halved) for halved in range(LENGTHS)})
    points = [(size, length) for size in sizes for length in lengths]
    found = torch.full((len(points),), torch.inf, dtype=torch.float64)

    def sample_s(size: int, length: int) -> float:
        """Return this rank's seconds in gathering such a sample in all layers, forward and backward."""
        if world.rank >= size:
            return 0.0
        parts = head_and_tail(length, size)
        gather = GroupParts(parts, world.rank, groups[size], device, CollectiveLog(Clock(device)))
        own = torch.randn(parts[world.rank].tokens, heads, width, device=device, dtype=dtype, requires_grad=True)
        dist.barrier(groups[size])
        begin = perf_counter()
        for _ in range(shape.num_hidden_layers):
            whole = gather(own)
            whole.backward(whole)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return perf_counter() - begin

    draw = np.random.default_rng(0)
    for _ in range(rounds):
        for number in draw.permutation(len(points)).tolist():
            took = torch.tensor(sample_s(*points[number]), dtype=torch.float64, device=device)
            dist.all_reduce(took, dist.ReduceOp.MAX)
            found[number] = min(found[number], took.cpu())
    (alone,) = measure(learner, [GridPoint(1, longest, held_out=False)])
    token = torch.tensor(min(alone.seconds) / longest, dtype=torch.float64, device=device)
    dist.all_reduce(token, dist.ReduceOp.MAX)
    dist.barrier()
    dist.destroy_process_group()
    return Times(points, found.tolist(), float(token))


def show(times: Times, config: RunConfig) -> tuple[Table, str]:
    """Return the table of measured and fitted times, and the lines for the config."""
    alpha, beta = fit(times.points, times.seconds)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("ranks", "tokens", "measured ms", "fitted ms", "error"):
        table.add_column(head, justify="right")
    for (count, length), seconds in zip(times.points, times.seconds, strict=True):
        fitted = alpha + beta * length * (count - 1) / count
        table.add_row(
            f"{count}", f"{length:,}", f"{1e3 * seconds:.3f}", f"{1e3 * fitted:.3f}", f"{fitted / seconds - 1:+.1%}"
        )
    in_seconds = config.cost.kind in IN_SECONDS
    unit = 1.0 if in_seconds else times.token_s
    said = "seconds" if in_seconds else f"padded tokens, of {1e6 * times.token_s:.3g} µs each"
    return (
        table,
        f"[cost]                   # in {said}\ngather_alpha = {alpha / unit:.4g}\ngather_beta = {beta / unit:.4g}",
    )


def main(words: Sequence[str]) -> int:
    """Measure, and print the table and the lines; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmarks.gather_price",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--ranks", type=int, help="started on this machine (2); not under torchrun")
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args(words)

    def body() -> None:
        config = load(given.config, given.overrides)
        if given.rounds < 1:
            raise ConfigError(f"--rounds {given.rounds}: at least 1")
        if config.cost.kind == "padded_tokens_squared":
            raise ConfigError("cost.kind = 'padded_tokens_squared' has no price of gathering; use another kind")
        if World.launched():
            if given.ranks is not None:
                raise ConfigError(f"--ranks {given.ranks}: torchrun has started {World.detect().size}; leave it out")
            times, is_main = measure_times(config, given.rounds), World.detect().is_main
        else:
            ranks = 2 if given.ranks is None else given.ranks
            if not 2 <= ranks <= 64:
                raise ConfigError(f"--ranks {ranks}: from 2 to 64")
            times, is_main = answers(run_ranks(measure_times, ranks, config, given.rounds, timeout_s=600))[0], True
        if is_main:
            table, lines = show(times, config)
            plain_console(at_least=80).print(table)
            print(lines)

    return guarded(body)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
