"""Inside a rank: how many collectives it took part in, and the gradient that its optimizer got."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ddpsched.local_ranks import post
from ddpsched.training.weights import host_array

Coordinates = npt.NDArray[np.integer]

BEAT_S = 0.2  # how often a count that grows is posted


def collectives() -> int:
    """Collectives that this rank has begun, over all process groups; those of DDP's and FSDP's own code included."""
    if not dist.is_initialized():
        return 0
    groups: list[Any] = list(dist.distributed_c10d._world.pg_map)
    return sum(group._get_sequence_number_for_group() for group in groups)


@contextmanager
def counted(stretch: str) -> Iterator[None]:
    """Post how many collectives begin in this stretch of the work, while it lasts and when it ends, however it ends.

    So the parent knows the count of a rank that waits for another until it is killed.
    """
    before, joined, over = collectives(), dist.is_initialized(), threading.Event()

    def beat() -> None:
        told = 0
        while not over.wait(BEAT_S):
            if (now := collectives() - before) > told:
                told = now
                post(("collectives", stretch, told))

    thread = threading.Thread(target=beat, name="witness", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        gone = joined and not dist.is_initialized()  # its groups took their counts with them
        post(("collectives", stretch, None if gone else collectives() - before))


def counts_of(posts: Sequence[Any]) -> dict[str, int | None]:
    """From what a rank posted: its collectives by stretch, in order; None where it destroyed its groups in one."""
    found: dict[str, int | None] = {}
    for each in posts:
        if isinstance(each, tuple) and each[:1] == ("collectives",):
            found[each[1]] = each[2]
    return found


@dataclass(frozen=True)
class Kept:
    """A step's gradient. ``digest`` of all of it; ``sketch``: (S,), at the coordinates asked for; ``sums``: (number of
    parameters, 2), each one's sum and sum of squares; ``missing``: names of parameters that got none, zeros here;
    ``path``: .npy of all of it, (P,), where it was asked for.
    """

    digest: str
    sketch: npt.NDArray[np.floating]
    sums: npt.NDArray[np.float64]
    missing: tuple[str, ...]
    path: Path | None


@contextmanager
def kept_gradients(model: torch.nn.Module, coordinates: Coordinates, path: Path | None) -> Iterator[list[Kept]]:
    """A list that gets the gradient right before each optimizer's step; ``path`` holds the last one.

    The step itself is taken at rate 0, so that the weights stay as they are.
    """
    kept: list[Kept] = []

    def keep(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        kept.append(keep_gradient(model, coordinates, path))
        for group in optimizer.param_groups:
            group["lr"] = 0.0

    handle = register_optimizer_step_pre_hook(keep)
    try:
        yield kept
    finally:
        handle.remove()


def keep_gradient(model: torch.nn.Module, coordinates: Coordinates, path: Path | None) -> Kept:
    """The gradient that the model holds now, flat, in the order of its parameters; a sharded one put together, which
    all ranks must do. ``coordinates``: (S,), rising.
    """
    named = trainable(model)
    size = sum(parameter.numel() for _, parameter in named)
    dtype = torch.zeros((), dtype=named[0][1].dtype).numpy().dtype
    whole = None if path is None else np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=(size,))
    digest, missing, sketch, start = blake2b(digest_size=16), [], np.empty(len(coordinates), dtype=dtype), 0
    sums = []
    for name, parameter in named:
        if parameter.grad is None:
            missing.append(name)
            piece = np.zeros(parameter.numel(), dtype=dtype)
        else:
            piece = host_array(parameter.grad)
        digest.update(piece.data)
        wide = piece.astype(np.float64, copy=False)
        sums.append((wide.sum(), wide @ wide))
        inside = slice(*np.searchsorted(coordinates, (start, start + len(piece))))
        sketch[inside] = piece[coordinates[inside] - start]
        if whole is not None:
            whole[start : start + len(piece)] = piece
        start += len(piece)
    if whole is not None:
        whole.flush()
    return Kept(digest.hexdigest(), sketch, np.array(sums), tuple(missing), path)


def difference(rank: int, own: Kept, first: Kept, tolerance: float) -> tuple[str, str] | None:
    """What sets a rank's gradient apart from rank 0's, and the likely cause; None where it is the same.

    Equal to the bit, or apart by rounding: at the sketch's coordinates, and in sum and size of every parameter's.
    """
    if own.missing != first.missing:
        name = min(set(own.missing) ^ set(first.missing))
        without, has = (rank, 0) if name in own.missing else (0, rank)
        says = f"{name} has grad = None on rank {without} and a gradient on rank {has}"
        return says, "an optimizer skips None and decays zeros: weights drift apart; give every rank the same"
    if own.digest == first.digest:
        return None
    sizes = np.sqrt(np.abs(np.stack([own.sums[:, 1], first.sums[:, 1]])))
    whole = float(np.linalg.norm(sizes[1])) or 1.0
    at_sketch = float(np.linalg.norm(own.sketch - first.sketch)) / (float(np.linalg.norm(first.sketch)) or 1.0)
    in_sum = float(np.abs(own.sums[:, 0] - first.sums[:, 0]).max()) / (np.sqrt(len(own.sketch)) * whole)
    apart = max(at_sketch, float(np.linalg.norm(sizes[0] - sizes[1])) / whole, in_sum)
    if apart <= tolerance:
        return None
    says = f"that of rank {rank} differs from rank 0's by {apart:.2g} of its size or more"
    return says, "not synchronised: ranks step along gradients of their own"


def trainable(model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    """Parameters that get gradients, by name, in the order of a flat gradient; shared ones once."""
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
