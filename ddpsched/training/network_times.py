"""The network between the ranks of a group: all-reduces of several sizes, and the messages of a model's step."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from ddpsched.arguments import check_output
from ddpsched.config import RunConfig
from ddpsched.costs.network import Network, fit_network
from ddpsched.errors import ConfigError
from ddpsched.records import write_json
from ddpsched.training.calibrate import identity_of
from ddpsched.training.distributed import DistributedExecutor
from ddpsched.training.learner import Learner
from ddpsched.world import World

SMALLEST, RATIO = 2**12, 4  # bytes of the smallest all-reduce, and from each size to the next
REPEATS = 9  # of each size, in turn
HELD_OUT = 3  # each third size is left out of the fit that the error is of


def calibrate_network(output: Path, config: RunConfig, overwrite: bool = False) -> Network:
    """Measure, fit, and write to ``output`` on rank 0; all ranks of torchrun call it together.

    Raises ConfigError, before anything is measured, where the file cannot be written or is there already, and for a
    config or a launch without a network.
    """
    world = World.detect()
    if config.executor.kind != "distributed" or world.size < 2:
        raise ConfigError(
            f"--network measures the messages of several ranks, and this is executor.kind = {config.executor.kind!r} "
            f"in {world.size} process(es); start it with: torchrun --standalone --nproc-per-node 2 -m ddpsched "
            "calibrate CONFIG --network --output FILE executor.kind=distributed world_size=2"
        )
    if world.is_main:
        check_output(output, overwrite, "network.json")
    with closing(DistributedExecutor(config, config.load_samples(), world)) as executor:
        found = measure_network(executor.learner, config)
        executor.exchange.barrier()
    if world.is_main:
        write_json(output, found.model_dump())
    return found


def measure_network(learner: Learner, config: RunConfig) -> Network:
    """Return the network of this group and the messages of a step of this learner; all ranks call it together."""
    messages = _messages(learner)
    sizes = [SMALLEST]
    while sizes[-1] * RATIO < max(messages, default=SMALLEST):
        sizes.append(sizes[-1] * RATIO)
    if max(messages, default=0) > sizes[-1]:
        sizes.append(max(messages))
    seconds = _all_reduce_seconds(learner, sizes)
    held = np.arange(len(sizes)) % HELD_OUT == HELD_OUT // 2
    latency_s, bandwidth = fit_network(sizes, seconds, config.world_size)
    error = None
    if (~held).sum() >= 2 and held.any():
        trial = fit_network(np.array(sizes)[~held].tolist(), np.array(seconds)[~held].tolist(), config.world_size)
        network = Network(latency_s=trial[0], bandwidth_bytes_per_s=trial[1])
        predicted = network.all_reduce_s(np.array(sizes)[held], config.world_size)
        error = float(np.abs(predicted / np.array(seconds)[held] - 1).mean())
    return Network(
        identity=identity_of(config, learner), world_size=config.world_size, backend=str(dist.get_backend()),
        latency_s=latency_s, bandwidth_bytes_per_s=max(1.0, bandwidth), messages=tuple(map(float, messages)),
        overlaps=config.sync.kind != "naive", error=error, sizes=tuple(sizes), seconds=tuple(seconds),
    )  # fmt: skip


def _messages(learner: Learner) -> list[int]:
    """Return the bytes of each message of a step, in their order, from a step of one sample at weight 0."""
    learner.begin_step()
    learner.optimiser.clear()
    with learner.sync.synchronise():
        (learner.loss_sum(learner.collate.synthetic(1, 4)) * 0.0).backward()
    learner.sync.wait()
    collectives, _ = learner.sync.log.take()
    learner.undo()
    return [each.num_bytes for each in collectives]


def _all_reduce_seconds(learner: Learner, sizes: Sequence[int]) -> list[float]:
    """Return the median seconds of an all-reduce of each size, of the slowest rank."""
    clock, device = learner.clock, learner.device
    seconds: list[list[float]] = [[] for _ in sizes]
    tensors = [torch.zeros(max(1, size // 4), device=device) for size in sizes]
    for number in range(REPEATS + 1):
        for place in np.random.default_rng(number).permutation(len(sizes)).tolist():
            dist.barrier()
            begin = clock.mark()
            dist.all_reduce(tensors[place])
            if number:  # the first call of a size connects and allocates
                seconds[place].append(clock.seconds(begin, clock.mark()))
    medians = torch.tensor([float(np.median(each)) for each in seconds], dtype=torch.float64, device=device)
    dist.all_reduce(medians, dist.ReduceOp.MAX)
    return [float(each) for each in medians]
