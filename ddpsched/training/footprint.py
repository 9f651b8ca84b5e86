"""The memory that the models of several runs take together in one process, known before any is built.

Each run keeps its weights, Adam's two numbers for each and the synchroniser's buffers from its first step to its last.
Gradients and activations are there in its turn alone, so they count once, for the largest model; of activations nothing
is known beforehand, and a tenth of the memory is left to them.
"""

from collections.abc import Sequence
from contextlib import suppress

import torch

from ddpsched.config import RunConfig
from ddpsched.errors import ConfigError, DdpschedError
from ddpsched.machine import free_memory
from ddpsched.training.clock import pick_device
from ddpsched.training.model import build_model
from ddpsched.world import World

SPARE = 0.1  # of the free memory, for activations
KEPT = {"naive": 3, "overlap": 4, "bucketed": 4, "ddp": 4, "fsdp": 3}  # weights, Adam's two, and buckets of gradients


def check_memory(configs: Sequence[RunConfig], world: World) -> str:
    """Return in a sentence what the runs take on each rank and what is free.

    Raises ConfigError where the ranks on this machine take more than is free, with what can be done.
    """
    sizes = []
    for config in configs:
        with suppress(DdpschedError):  # a run that cannot start takes nothing, and says why in its turn
            sizes.append(kept_bytes(config))
    device = pick_device(configs[0], world.local_rank)
    # a GPU is one rank's alone, a machine's memory all its ranks'; World knows no other machines, and over several
    # this asks for too much rather than too little
    sharing = world.size if device.type == "cpu" else 1
    needed = sharing * (sum(kept for kept, _ in sizes) + max((once for _, once in sizes), default=0))
    free = free_bytes(device)
    ranks = f" on {sharing} ranks" if sharing > 1 else ""
    text = f"{len(configs)} runs in turn keep {needed / 2**30:.2f} GiB of models{ranks}, activations aside"
    if free is None:
        return f"{text}; how much is free is not known here"
    text += f"; {free / 2**30:.2f} GiB are free"
    if needed > (1 - SPARE) * free:
        raise ConfigError(
            f"{text}, of which a tenth is left to activations: they do not fit together. Compare fewer arms or a "
            "smaller model, free some memory, or let them take turns as processes: compare.how=processes"
        )
    return text


def kept_bytes(config: RunConfig) -> tuple[int, int]:
    """Return the bytes that a run keeps on a rank from step to step, and those that it takes in its turn alone."""
    samples = config.load_samples()
    model = config.model.model_copy(update={"weights": "random"}) if config.model.name != "tiny" else config.model
    with torch.device("meta"):  # shapes without memory
        parameters = list(build_model(model, config.data.num_labels, samples.vocab_size, samples.pad_id).parameters())
    width = 8 if config.train.precision == "float64" else 4
    weights = width * sum(parameter.numel() for parameter in parameters)
    kind = config.sync.kind if config.executor.kind == "distributed" else "naive"
    shards = config.world_size if kind == "fsdp" else 1
    return KEPT[kind] * weights // shards, weights // shards


def free_bytes(device: torch.device) -> int | None:
    """Return the memory that is free on a device, or on this machine and within its limit; None where unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return free_memory()
