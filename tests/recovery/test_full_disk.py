"""A disk that is really full while a run writes checkpoints and its model: one message, and nothing half-written."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from runs import config_of
from safetensors.torch import save_file

from ddpsched.errors import RankFailure
from ddpsched.run_folder import read_status
from ddpsched.run_loop import run
from ddpsched.shortage import system_errors, system_fault


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Return a function that makes a disk of so many KiB in memory."""
    mounted = []

    def mount(size: int) -> Path:
        words = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(tmp_path)]
        try:
            done = subprocess.run(words, capture_output=True, text=True)
        except OSError as error:  # a system without this program has no other disk of a chosen size
            pytest.skip(f"no mount: {error}")
        if done.returncode:  # containers and plain users may not mount, and nothing else makes a small disk
            pytest.skip(f"may not mount a disk: {done.stderr.strip()}")
        mounted.append(tmp_path)
        return tmp_path

    yield mount
    for each in mounted:
        subprocess.run(["umount", str(each)], check=True)


@pytest.mark.parametrize(("size", "every"), [(1200, 5), (400, 0)], ids=["first checkpoint", "model"])
def test_full_disk(disk: Callable[[int], Path], size: int, every: int) -> None:
    config = config_of(disk(size), steps=10, data={"size": 60}, train={"checkpoint_every": every})
    with pytest.raises(
        RankFailure, match=f"rank 0: no space left for {config.run_dir}; free some, or write to another disk"
    ):
        run(config)
    status = read_status(config.run_dir)
    assert status["state"] == "failed"
    assert "no space left" in status["reason"]
    assert not list(config.run_dir.glob("model*"))
    assert not list(config.run_dir.glob("checkpoints/step-*"))


@pytest.mark.parametrize("room", [0, 4], ids=["lock", "status"])
def test_a_disk_that_is_full_before_a_run_begins_is_left_as_it_was(disk: Callable[[int], Path], room: int) -> None:
    folder = disk(64)
    (folder / "other").write_bytes(bytes((64 - room) * 1024))
    config = config_of(folder, "simulated")
    with pytest.raises((OSError, RankFailure)) as caught:
        run(config)
    says = system_fault(caught.value) if isinstance(caught.value, OSError) else str(caught.value)
    assert f"no space left for {config.run_dir}; free some" in says
    assert [path.name for path in folder.rglob("*")] == ["other"]


def test_a_rust_librarys_error_is_the_systems(tmp_path: Path) -> None:
    """The library raises a kind of its own, which names no file."""
    path = tmp_path / "no" / "file"
    with pytest.raises(FileNotFoundError) as caught, system_errors(path):
        save_file({"a": torch.zeros(4)}, path)
    assert caught.value.filename == str(path)
    with pytest.raises(ValueError, match="another"), system_errors(path):
        raise ValueError("another")
