"""A failure on one rank ends all ranks alike, with a reason, and finished steps are kept."""

import math
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from time import sleep
from typing import Any

import pytest
import torch
from ranks import run_ranks
from runs import config_of, folder_of

from ddpsched.errors import (
    NonFiniteError,
    PlanMismatch,
    RankFailure,
    RunError,
    StepOutOfMemory,
)
from ddpsched.planning.policies import minmax
from ddpsched.processes import host_id
from ddpsched.records import RecordWriter, read_lines
from ddpsched.run_folder import read_status
from ddpsched.run_loop import run
from ddpsched.training.distributed import DistributedExecutor
from ddpsched.training.learner import Learner


def other_plan_on_rank_1(rank: int) -> None:
    honest, calls = minmax.take, []

    def other_samples(context: Any, windows: Any, costs: Any, chosen: Any, prefetch: int) -> Any:
        calls.append(1)
        if rank == 1 and len(calls) > 2:
            windows = type(windows)(0, tuple(ids[::-1] for ids in windows.ids))
        return honest(context, windows, costs, chosen, prefetch)

    minmax.take = other_samples


def nan_on_rank_1(rank: int) -> None:
    """Poison rank 1's loss, and delay rank 0 so that it sees the other end."""
    honest, honest_close, calls = Learner.loss_sum, DistributedExecutor.close, []

    def poisoned(self: Learner, batch: Any) -> Any:
        calls.append(1)
        return honest(self, batch) * (float("nan") if rank == 1 and len(calls) == 3 else 1.0)

    def slowly(self: DistributedExecutor) -> None:
        sleep(2 * (rank == 0))
        honest_close(self)

    Learner.loss_sum, DistributedExecutor.close = poisoned, slowly


def full_disk_on_rank_1(rank: int) -> None:
    honest = RecordWriter.write

    def write(self: RecordWriter, *records: Any, **more: Any) -> None:
        if rank == 1 and records[0].step == 2:
            raise OSError(28, "No space left on device")
        honest(self, *records, **more)

    RecordWriter.write = write


def bug_on_rank_1(rank: int) -> None:
    honest = Learner.run

    def broken(self: Learner, *args: Any, **more: Any) -> Any:
        self.steps = getattr(self, "steps", 0) + 1
        if rank == 1 and self.steps == 3:
            raise KeyError("a bug")
        return honest(self, *args, **more)

    Learner.run = broken


TROUBLES = {
    "plan": other_plan_on_rank_1,
    "nan": nan_on_rank_1,
    "disk": full_disk_on_rank_1,
    "bug": bug_on_rank_1,
}


def in_trouble(outputs: Path, kind: str, sync: str) -> tuple[str, str]:
    """Make rank 1 fail in step 2, and return the error that this rank raises."""
    TROUBLES[kind](int(os.environ["RANK"]))
    config = config_of(outputs, "distributed", sync={"kind": sync})
    try:
        run(config)
    except Exception as error:
        return type(error).__name__, str(error)
    return "nothing", ""


@pytest.mark.parametrize(
    ("kind", "on_rank_1", "on_rank_0", "words"),
    [
        ("plan", PlanMismatch, PlanMismatch, "step 2"),
        ("nan", NonFiniteError, NonFiniteError, "rank 1.*step 2"),
        ("disk", RunError, RunError, "rank 1.*disk full"),
        ("bug", KeyError, RankFailure, "rank 1 failed in step 2|a bug"),
    ],
)
def test_trouble_of_one_rank_is_known_to_all(
    tmp_path: Path, kind: str, on_rank_1: Any, on_rank_0: Any, words: str
) -> None:
    zero, one = run_ranks(in_trouble, 2, tmp_path, kind, "ddp", timeout_s=60)
    assert (zero[0], one[0]) == (on_rank_0.__name__, on_rank_1.__name__), (zero, one)
    import re

    assert re.search(words, zero[1])
    assert re.search(words, one[1])
    assert read_status(tmp_path / "runs" / "minmax-distributed")["state"] == "failed"


def test_virtual_ranks_report_memory_and_nan_like_real_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest, calls = Learner.loss_sum, []

    def loss_sum(self: Learner, batch: Any) -> Any:
        calls.append(1)
        if len(calls) >= 6:  # after the warm-up, two ranks a step: from step 2 on, single samples included
            raise torch.OutOfMemoryError("planted")
        return honest(self, batch)

    monkeypatch.setattr(Learner, "loss_sum", loss_sum)
    with pytest.raises(StepOutOfMemory, match=r"rank \d ran out of memory in step 2 with"):
        run(config_of(tmp_path))
    monkeypatch.setattr(Learner, "loss_sum", lambda self, batch: honest(self, batch) * math.nan)
    with pytest.raises(NonFiniteError, match="step 0"):
        run(config_of(tmp_path))
    assert "NaN" in read_status(tmp_path / "runs" / "minmax-virtual")["reason"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 64 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:  # in most containers, and for users who are not root
        pytest.skip(f"a small file system needs the right to mount: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_named_and_nothing_half_written_remains(small_disk: Path) -> None:
    config = config_of(small_disk, "simulated").model_copy(update={"steps": 500})
    with pytest.raises(RunError, match=r"no space left for .*minmax-simulated; free some"):
        run(config)
    assert read_status(config.run_dir)["state"] == "failed"
    assert not list(config.run_dir.rglob("*.part"))
    assert read_lines(config.run_dir)[0]["step"] == 0, "what was written before stays readable"


def on_a_full_disk(outputs: Path) -> tuple[str, str]:
    try:
        run(config_of(outputs, "distributed").model_copy(update={"steps": 500}))
    except Exception as error:
        return type(error).__name__, str(error)
    return "nothing", ""


def test_a_full_disk_ends_all_ranks(small_disk: Path) -> None:
    for name, text in run_ranks(on_a_full_disk, 2, small_disk, timeout_s=60):
        assert name in ("RunError", "RankFailure"), text
        assert "disk full" in text or "no space left" in text
    assert read_status(small_disk / "runs" / "minmax-distributed")["state"] == "failed"


def test_out_of_memory_outside_a_step_is_named_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(self: Any) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setattr("ddpsched.training.learner.Learner.evaluate", no_memory)
    with pytest.raises(StepOutOfMemory, match="rank 0 ran out of memory outside a step"):
        run(config_of(tmp_path))
    assert "out of memory" in read_status(tmp_path / "runs" / "minmax-virtual")["reason"]


def test_machines_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are compared in full, as a pid of another machine must not be looked up here."""
    names = iter(["gpu-node-01", "gpu-node-02", "gpu-node-01"])
    monkeypatch.setattr(os, "uname", lambda: type("Name", (), {"nodename": next(names)}))
    first, second, again = host_id(), host_id(), host_id()
    assert first == again != second


def test_the_first_reason_of_a_try_is_kept(tmp_path: Path) -> None:
    """Later reports of the same attempt only echo the first; a later attempt reports its reason."""
    config = config_of(tmp_path)
    one, two, later = (folder_of(config) for _ in range(3))
    one.failed("rank 0: no space left")
    two.failed("rank 0 died")
    assert read_status(config.run_dir)["reason"] == "rank 0: no space left"
    later._started_s += 60
    later.failed("another mistake")
    assert read_status(config.run_dir)["reason"] == "another mistake"
