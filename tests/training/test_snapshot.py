"""Snapshot: what it writes is what safetensors would write, at the first writing and at later ones."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ddpsched.training.state import Snapshot, restore, tensors_of

KINDS = ("weights", "moments")


class Odd(torch.nn.Module):
    """Parameters of several types and shapes, one without elements, and a buffer that is a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = torch.nn.Parameter(torch.randn(3, 5))
        self.halves = torch.nn.Parameter(torch.randn(7, dtype=torch.bfloat16))
        self.empty = torch.nn.Parameter(torch.empty(0, 4))
        self.register_buffer("scalar", torch.tensor(2.5, dtype=torch.float64))
        self.register_buffer("flags", torch.tensor([True, False, True]))


def trained() -> tuple[Odd, torch.optim.AdamW]:
    model = Odd()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    step(model, optimizer)
    return model, optimizer


def umask() -> int:
    os.umask(mask := os.umask(0))
    return mask


def step(model: Odd, optimizer: torch.optim.Optimizer) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    model.get_buffer("scalar").add_(1)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_each_writing_is_as_the_library_writes(tmp_path: Path, steps: int) -> None:
    model, optimizer = trained()
    snapshot = Snapshot(model, optimizer)
    for at in range(steps + 1):
        snapshot.take()
        (tmp_path / str(at)).mkdir()
        snapshot.write(tmp_path / str(at), 0, 1)
        if at < steps:
            step(model, optimizer)
    tensors = {name: tensor.clone() for name, tensor in tensors_of(model, optimizer)}
    for kind in KINDS:
        own = {name: each for name, each in tensors.items() if name.startswith("weights.") == (kind == "weights")}
        save_file(own, tmp_path / "expected")
        assert (tmp_path / str(steps) / f"{kind}.safetensors").read_bytes() == (tmp_path / "expected").read_bytes()
        assert set(load_file(tmp_path / "expected")) == set(own)
        assert (tmp_path / str(steps) / f"{kind}.safetensors").stat().st_mode & 0o777 == 0o666 & ~umask()


def test_a_later_writing_is_restored(tmp_path: Path) -> None:
    model, optimizer = trained()
    snapshot = Snapshot(model, optimizer)
    for at in ("first", "second"):
        step(model, optimizer)
        snapshot.take()
        (tmp_path / at).mkdir()
        snapshot.write(tmp_path / at, 0, 1)
    expected = {name: tensor.clone() for name, tensor in tensors_of(model, optimizer)}
    step(model, optimizer)
    restore(model, optimizer, tmp_path / "second")
    for name, tensor in tensors_of(model, optimizer):
        assert torch.equal(tensor, expected[name]), name
