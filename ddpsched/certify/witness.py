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
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ddpsched.certify.world import post

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
    before, over = collectives(), threading.Event()

    def beat() -> None:
        told = 0
        while not over.wait(BEAT_S):
            if (now := collectives() - before) != told:
                told = now
                post(("collectives", stretch, told))

    thread = threading.Thread(target=beat, name="witness", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        post(("collectives", stretch, collectives() - before))


def counts_of(posts: Sequence[Any]) -> dict[str, int]:
    """From what a rank posted: its collectives by stretch, in order."""
    found: dict[str, int] = {}
    for each in posts:
        if isinstance(each, tuple) and each[:1] == ("collectives",):
            found[each[1]] = each[2]
    return found


@dataclass(frozen=True)
class Kept:
    """A step's gradient. ``digest`` of all of it; ``sketch``: (S,), at the coordinates asked for; ``missing``: names of
    parameters that got none, zeros here; ``path``: .npy of all of it, (P,), where it was asked for.
    """

    digest: str
    sketch: npt.NDArray[np.floating]
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
    for name, parameter in named:
        if parameter.grad is None:
            missing.append(name)
            piece = np.zeros(parameter.numel(), dtype=dtype)
        else:
            piece = _array(parameter.grad)
        digest.update(piece.data)
        inside = slice(*np.searchsorted(coordinates, (start, start + len(piece))))
        sketch[inside] = piece[coordinates[inside] - start]
        if whole is not None:
            whole[start : start + len(piece)] = piece
        start += len(piece)
    if whole is not None:
        whole.flush()
    return Kept(digest.hexdigest(), sketch, tuple(missing), path)


def trainable(model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    """Parameters that get gradients, by name, in the order of a flat gradient; shared ones once."""
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def weights_digest(model: torch.nn.Module) -> str:
    """Of all parameters and buffers, by name; a sharded one is put together, which all ranks must do."""
    digest = blake2b(digest_size=16)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        digest.update(name.encode())
        digest.update(_array(tensor.detach()).data)
    return digest.hexdigest()


def _array(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Flat, on the host; bfloat16, which numpy does not know, as float32."""
    whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    flat = whole.detach().reshape(-1).cpu()
    return (flat.float() if flat.dtype == torch.bfloat16 else flat).numpy()
