"""Measurements inside a rank: how many collectives it took part in, and the gradient that its optimizer got."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ddpsched.certify.target import Floats, Ints, draw_coordinates
from ddpsched.local_ranks import post
from ddpsched.training.model import host_array
from ddpsched.training.part_groups import SPLIT_GROUP

APART = 30  # times the tolerance may a single parameter's gradient differ between ranks
POST_INTERVAL_S = 0.2  # how often a growing count is posted


def collectives() -> int:
    """Return how many collectives this rank has begun in all process groups, DDP's and FSDP's included.

    Those within the ranks of a split sample are left out, as ranks have different numbers of parts.
    """
    if not dist.is_initialized():
        return 0
    groups: list[Any] = list(dist.distributed_c10d._world.pg_map)
    return sum(group._get_sequence_number_for_group() for group in groups if group.group_desc != SPLIT_GROUP)


@contextmanager
def counted(phase: str) -> Iterator[None]:
    """Post how many collectives begin in this phase of the work: while it runs, and when it ends or fails.

    So the parent process knows the count of a rank that waits for another until it is killed.
    """
    before, joined, over = collectives(), dist.is_initialized(), threading.Event()

    def post_growth() -> None:
        posted = 0
        while not over.wait(POST_INTERVAL_S):
            if (count := collectives() - before) > posted:
                posted = count
                post(("collectives", phase, count))

    thread = threading.Thread(target=post_growth, name="count of collectives", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        gone = joined and not dist.is_initialized()  # the counts are deleted together with the groups
        post(("collectives", phase, None if gone else collectives() - before))


def counts_of(posts: Sequence[Any]) -> dict[str, int | None]:
    """Return a rank's collectives by phase, in order, from what it posted; None where it destroyed its groups."""
    return {each[1]: each[2] for each in posts if isinstance(each, tuple) and each[:1] == ("collectives",)}


@dataclass(frozen=True)
class CapturedGradient:
    """The gradient of one step.

    ``digest``: of all of it. ``sketch``: (S,), its values at some coordinates. ``sums``: (num_parameters, 2),
    each parameter's sum and sum of squares, in the order of ``names``. ``missing``: names of parameters without one,
    which count as zeros here. ``path``: a .npy file with all of it, (P,), where one was asked for.
    """

    digest: str
    sketch: Floats
    sums: Floats
    names: tuple[str, ...]
    missing: tuple[str, ...]
    path: Path | None


@contextmanager
def captured_gradients(model: torch.nn.Module, path: Path | None) -> Iterator[list[CapturedGradient]]:
    """Yield a list that gets the gradient right before each optimizer step; ``path`` receives the last one.

    The optimizer then steps at learning rate 0, so that the weights stay as they are.
    """
    captured: list[CapturedGradient] = []

    def capture(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        captured.append(capture_gradient(model, path))
        for group in optimizer.param_groups:
            group["lr"] = 0.0

    handle = register_optimizer_step_pre_hook(capture)
    try:
        yield captured
    finally:
        handle.remove()


def capture_gradient(
    model: torch.nn.Module, path: Path | None = None, coordinates: Ints | None = None
) -> CapturedGradient:
    """Return the model's present gradient, flat, in the order of its parameters.

    A sharded gradient is gathered, so that all ranks must call this. ``coordinates``: (S,), rising; by default drawn.
    """
    named = trainable(model)
    size = sum(parameter.numel() for _, parameter in named)
    coordinates = draw_coordinates(size) if coordinates is None else coordinates
    dtype = torch.zeros((), dtype=named[0][1].dtype).numpy().dtype
    file = None if path is None else np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=(size,))
    digest, missing, sums, start = blake2b(digest_size=16), [], [], 0
    sketch = np.empty(len(coordinates), dtype=dtype)
    for name, parameter in named:
        if parameter.grad is None:
            missing.append(name)
            piece = np.zeros(parameter.numel(), dtype=dtype)
        else:
            piece = host_array(parameter.grad)
        digest.update(piece.data)
        wide = piece.astype(np.float64, copy=False)
        sums.append((wide.sum(), wide @ wide))
        end = start + len(piece)
        inside = slice(*np.searchsorted(coordinates, (start, end)))
        sketch[inside] = piece[coordinates[inside] - start]
        if file is not None:
            file[start:end] = piece
        start = end
    if file is not None:
        file.flush()
    names = tuple(name for name, _ in named)
    return CapturedGradient(digest.hexdigest(), sketch, np.array(sums), names, tuple(missing), path)


def difference(captured: Sequence[CapturedGradient], tolerance: float) -> tuple[str, str] | None:
    """Return how the first rank whose gradient differs from rank 0's differs, and the likely cause; None: all equal.

    Equal means the same bits, or a difference within ``tolerance`` at the sketch's coordinates and in the sum and size
    of every parameter's gradient. ``captured``: one of each rank.
    """
    first = captured[0]
    sizes = np.sqrt(np.abs(first.sums[:, 1]))  # of each parameter
    size = float(np.linalg.norm(sizes)) or 1.0
    least = 4 * float(np.finfo(first.sketch.dtype).eps) * size  # of a parameter that is more than rounding
    for rank, other in enumerate(captured):
        if other.missing != first.missing:
            name = min(set(other.missing) ^ set(first.missing))
            without, has = (rank, 0) if name in other.missing else (0, rank)
            says = f"{name} has grad = None on rank {without} and a gradient on rank {has}"
            return says, "an optimizer skips None and decays zeros: weights drift apart; give every rank the same"
        if other.digest == first.digest:
            continue
        in_size = np.sqrt(np.abs(other.sums[:, 1])) - sizes
        in_sum = np.abs(other.sums[:, 0] - first.sums[:, 0]).max() / np.sqrt(len(other.sketch))
        at_sketch = np.linalg.norm(other.sketch - first.sketch) / (float(np.linalg.norm(first.sketch)) or 1.0)
        apart = max(float(at_sketch), float(np.linalg.norm(in_size)) / size, float(in_sum) / size)
        if not apart <= tolerance:  # also for NaN
            says = f"that of rank {rank} differs from rank 0's by {apart:.2g} of its size or more"
            return says, "not synchronised: each rank steps along its own gradient"
        in_one = np.abs(in_size) / np.where(sizes > least, sizes, np.inf)
        if (most := float(in_one.max())) > APART * tolerance:
            name = first.names[int(in_one.argmax())]
            says = f"that of {name} on rank {rank} differs from rank 0's by {most:.2g} of its own size or more"
            return says, f"{name} is not synchronised: each rank steps along its own gradient"
    return None


def trainable(model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    """Return the parameters that get gradients, by name, in the order of a flat gradient; shared ones once."""
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
