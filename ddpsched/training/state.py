"""The tensors of a training: weights, buffers and Adam's moments, copied to the host, written and read back.

Files are safetensors. Where ranks keep a share each (fsdp), every rank writes its own, the first one what is whole on
all, and reading puts shares together along their first dimension, so that another number of ranks can go on.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor

from ddpsched.errors import DataError
from ddpsched.recovery.synced_file import write_synced
from ddpsched.shortage import system_errors

WEIGHTS, MOMENTS = "weights", "moments"  # the files' names begin so
KEPT = ("exp_avg", "exp_avg_sq", "step")  # by AdamW, of each parameter


class Snapshot:
    """Copies on the host of what a training goes on from; taken again and again into the same memory.

    ``model``: its parameters and buffers. ``optimizer``: an AdamW that has its moments.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._tensors = dict(tensors_of(model, optimizer))
        self._copies: dict[str, torch.Tensor] = {}
        self._files: dict[str, _File] = {}

    def take(self) -> None:
        """Copy everything as it is now."""
        if not self._copies:
            self._copies = {name: torch.empty(_local(t).shape, dtype=t.dtype) for name, t in self._tensors.items()}
        for name, tensor in self._tensors.items():
            self._copies[name].copy_(_local(tensor), non_blocking=True)
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    @property
    def is_shared(self) -> bool:
        """Whether this process has a share of the tensors only."""
        return any(isinstance(tensor, DTensor) for tensor in self._tensors.values())

    def write(self, folder: Path, share: int, shares: int) -> None:
        """Write the copies as the ``share``-th of ``shares`` files each of weights and moments, and sync them."""
        if not self._files:
            own = [name for name in self._copies if not share or isinstance(self._tensors[name], DTensor)]
            self._files = {
                kind: _File({name: self._copies[name] for name in own if _kind(name) == kind})
                for kind in (WEIGHTS, MOMENTS)
            }
        for kind, file in self._files.items():
            file.write(folder / _name(kind, share, shares))


class _File:
    """A safetensors file that is written again and again, of tensors that stay where they are.

    The library lays it out at the first writing. Its header holds names, shapes and places, so it stays, too: later
    only bytes are written.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors, self._parts = tensors, list[memoryview]()

    def write(self, path: Path) -> None:
        """Write the tensors as they are now, and sync the file."""
        if not self._parts:
            with system_errors(path):
                save_file(dict(self._tensors), path)
            self._parts = self._laid_out(path)
            path.unlink()  # only its owner may read it
        write_synced(path, self._parts)

    def _laid_out(self, path: Path) -> list[memoryview]:
        """Return the parts that a file written by the library consists of: its header, and each tensor's bytes."""
        with path.open("rb") as file:
            length = file.read(8)  # of the header, which is JSON; little-endian
            header = file.read(int.from_bytes(length, "little"))
        places = json.loads(header)
        names = sorted(self._tensors, key=lambda name: places[name]["data_offsets"])
        data = [self._tensors[name].reshape(-1).view(torch.uint8).numpy().data for name in names]
        return [memoryview(length), memoryview(header), *data]


def tensors_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each tensor of a training by name; one that several modules share is there once."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        yield f"{WEIGHTS}.{name}", tensor.detach()
    for name, parameter in model.named_parameters():
        for key in KEPT:
            if parameter in optimizer.state:
                yield f"{key}.{name}", optimizer.state[parameter][key]


@torch.no_grad()
def restore(model: torch.nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """Overwrite weights, buffers and moments with those that ``Snapshot.write`` wrote into a folder.

    Raises DataError where the files hold other tensors than this model and optimizer have.
    """
    read = {name: tensor for kind in (WEIGHTS, MOMENTS) for name, tensor in _read(folder, kind).items()}
    expected = dict(tensors_of(model, optimizer))
    if odd := sorted(set(read) ^ set(expected)):
        raise DataError(f"{folder} is of another model: {odd[0]} is in only one of the two; begin anew with --restart")
    for name, tensor in expected.items():
        whole, local = read[name], _local(tensor)
        if whole.shape != tensor.shape or whole.dtype != tensor.dtype:
            raise DataError(
                f"{folder}: {name} is {whole.dtype} of shape {tuple(whole.shape)}, here {tensor.dtype} of "
                f"{tuple(tensor.shape)}; begin anew with --restart"
            )
        local.copy_(_share(whole, tensor) if isinstance(tensor, DTensor) else whole)


def _read(folder: Path, kind: str) -> Mapping[str, torch.Tensor]:
    """Return the tensors of all files of a kind, put together along dimension 0 where each holds a share."""
    pieces: dict[str, list[torch.Tensor]] = {}
    for path in sorted(folder.glob(f"{kind}*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (it is no mapping)
                    pieces.setdefault(name, []).append(file.get_tensor(name))
        except (OSError, SafetensorError) as error:
            raise DataError(f"{path} cannot be read ({error}); begin anew with --restart") from None
    return {name: each[0] if len(each) == 1 else torch.cat(each) for name, each in pieces.items()}


def _share(whole: torch.Tensor, like: DTensor) -> torch.Tensor:
    """Return this rank's rows of ``whole``: torch deals dimension 0 in pieces of ceil(rows / ranks)."""
    mesh = like.device_mesh
    size = -(-len(whole) // mesh.size())
    return whole[mesh.get_local_rank() * size :][:size]


def _local(tensor: Any) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _kind(name: str) -> str:
    return WEIGHTS if name.startswith(f"{WEIGHTS}.") else MOMENTS


def _name(kind: str, share: int, shares: int) -> str:
    return f"{kind}.safetensors" if shares == 1 else f"{kind}-{share:05d}-of-{shares:05d}.safetensors"
