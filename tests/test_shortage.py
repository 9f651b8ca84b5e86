"""A machine that refuses memory, threads or files ends a run with one message: rank, what was refused, remedy."""

import errno
import json
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from runs import config_of

from ddpsched import shortage
from ddpsched.cli import guarded
from ddpsched.config import dump
from ddpsched.errors import RankFailure, StepOutOfMemory
from ddpsched.exchange import Flag, verdict, vote_row
from ddpsched.run_loop import run
from ddpsched.simulated import SimulatedExecutor
from ddpsched.training.out_of_memory import is_out_of_memory


def raised(error: BaseException) -> None:
    raise error


def wrapped() -> None:
    try:
        raise MemoryError
    except MemoryError as error:
        raise ImportError("numpy could not be imported") from error


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("can't start new thread"),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        ImportError("libx.so: cannot allocate memory in static TLS block"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
        OSError(errno.EMFILE, "Too many open files"),
        RuntimeError("std::bad_alloc"),
    ],
    ids=repr,
)
def test_one_message(error: BaseException, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    assert guarded(lambda: raised(error)) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("error: rank 3: the system gave no more memory or threads (")
    assert "raise the limits of this shell (`ulimit -a` shows them" in printed
    assert len(printed.splitlines()) == 1


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "no space left for what was written"),
        (OSError(errno.EDQUOT, "Disk quota exceeded", "a/file"), "the disk quota is used up for a/file"),
    ],
)
def test_a_full_disk_has_a_remedy(error: OSError, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(lambda: raised(error)) == 1
    remedy = "free some, or write to another disk (outputs=..., or --output, where there is one)"
    assert capsys.readouterr().err == f"error: {says}; {remedy}\n"


def test_the_cause_of_an_error_is_looked_at() -> None:
    assert guarded(wrapped) == 1


def test_other_errors_are_no_shortage(capsys: pytest.CaptureFixture[str]) -> None:
    for error in (RuntimeError("a bug"), ImportError("No module named x"), ValueError("out of memory")):
        assert shortage.shortage(error) is None
        with pytest.raises(type(error)):
            guarded(lambda error=error: raised(error))  # type: ignore[misc]
    assert guarded(lambda: raised(FileNotFoundError(errno.ENOENT, "No such file", "x"))) == 1
    assert capsys.readouterr().err == "error: x: No such file\n"


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")], ids=repr)
def test_a_step_without_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    monkeypatch.setattr(SimulatedExecutor, "execute", lambda self, plan: raised(error))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    config = config_of(tmp_path, "simulated")
    with pytest.raises(RankFailure, match=r"rank 0: the system gave no more memory or threads"):
        run(config)
    status = json.loads((config.run_dir / "status.json").read_text())
    assert status["state"] == "failed"
    assert "ulimit" in status["reason"]


def test_the_limit_of_address_space_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shortage.raise_limit() == ""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1_200_000 * 1024, resource.RLIM_INFINITY))
    named = "raise `ulimit -v`, which is 1,200,000 KiB of address space here, or "
    assert named in str(shortage.shortage(MemoryError()))
    error = MemoryError("malloc of size 2368 failed")
    assert is_out_of_memory(error)
    monkeypatch.setattr(SimulatedExecutor, "execute", lambda self, plan: raised(error))
    with pytest.raises(StepOutOfMemory, match=re.escape(f"(malloc of size 2368 failed); {named}take a smaller model")):
        run(config_of(tmp_path, "simulated"))
    in_a_step = verdict(vote_row(0, 0, Flag.OUT_OF_MEMORY, 4, 9)[None])
    assert f"no weights were changed: {named}lower global_batch" in str(in_a_step)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space are Linux's")
@pytest.mark.parametrize("kib", [100_000, 270_000, 700_000])
def test_a_shell_with_too_little_memory(tmp_path: Path, kib: int) -> None:
    config = config_of(tmp_path, "simulated")
    (tmp_path / "run.toml").write_text(dump(config))
    done = subprocess.run(
        [sys.executable, "-m", "ddpsched", "run", str(tmp_path / "run.toml")],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (kib * 1024, kib * 1024)),
    )
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert done.returncode == 1, done.stderr
    assert len(errors) == 1
    assert errors[0].startswith("error: rank 0: ")
    assert "ulimit" in errors[0]
    assert "Traceback" not in done.stderr
