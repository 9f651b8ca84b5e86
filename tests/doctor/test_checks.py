"""Checks find what is planted: a full or read-only disk, no locks, a port that is taken, a wrong gradient."""

import errno
import fcntl
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from ddpsched.doctor import certificate, devices, disk, ports, ranks, versions
from ddpsched.doctor.finding import Finding, Setting
from ddpsched.doctor.isolation import Probe, examine


def test_versions_of_this_environment(tmp_path: Path) -> None:
    (finding,) = versions.check(Setting(tmp_path, tmp_path))
    assert finding.state == "ok", finding
    assert "torch 2." in finding.says


def test_ddpsched_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise versions.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(versions.metadata, "metadata", missing)
    (finding,) = versions.check(Setting(tmp_path, tmp_path))
    assert finding.state == "warn"
    assert "not installed" in finding.says


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("raise ImportError('undefined symbol')", "rank 0 raised ImportError: undefined symbol"),
        ("import os\nos.abort()", "the process that loads torch died"),
    ],
)
def test_a_torch_that_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, says: str) -> None:
    (tmp_path / "torch.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)  # of the server that ranks are forked from
    monkeypatch.syspath_prepend(tmp_path)  # of the process of the checks, and so of ranks
    probe = Probe("torch", devices.check_gpus, 20.0, "do this")
    ((finding,),) = examine([probe], Setting(tmp_path, tmp_path), time.monotonic() + 20)
    assert finding == Finding("torch", "fail", says, devices.TORCH)


def disk_finding(folder: Path) -> str:
    """Return the line on a folder, in which nothing is left."""
    (finding,) = disk.check(Setting(folder / "outputs", folder))
    assert not list(folder.iterdir())
    return finding.line


def test_a_disk(tmp_path: Path) -> None:
    line = disk_finding(tmp_path)
    assert line.startswith(f"ok    disk             {tmp_path}: 4 MiB written"), "outputs itself is not made"
    assert line.endswith("locks work")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def fsync(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    line = disk_finding(tmp_path)
    assert line.startswith("fail")
    assert f"writing 4 MiB failed: {os.strerror(number)} -> " in line


@pytest.mark.parametrize(
    ("error", "says"), [(OSError(errno.ENOLCK, "x"), "no locks"), (None, "does not keep a second")]
)
def test_a_disk_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError | None, says: str
) -> None:
    def flock(*_: Any) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(fcntl, "flock", flock)
    line = disk_finding(tmp_path)
    assert line.startswith("warn")
    assert says in line


def test_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(tmp_path, tmp_path)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    assert ports.check(setting)[0].state == "ok"
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        monkeypatch.setenv("MASTER_PORT", str(listening.getsockname()[1]))
        (taken,) = ports.check(setting)
    assert taken.state == "fail"
    assert "already in use" in taken.says
    assert ports.check(setting)[0].state == "ok", "it is free again"
    for wrong in ("70000", "x"):
        monkeypatch.setenv("MASTER_PORT", wrong)
        assert "from 1 to 65535" in ports.check(setting)[0].says


def test_a_loopback_address_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(port: int) -> None:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

    monkeypatch.setattr(ports, "answer", refuse)
    (finding,) = ports.check(Setting(tmp_path, tmp_path))
    assert (finding.state, "Connection refused" in finding.says) == ("fail", True)


def test_two_ranks(tmp_path: Path) -> None:
    findings = ranks.check(Setting(tmp_path, tmp_path))
    assert [each.name for each in findings] == ["two ranks", "clocks", "killed rank"]
    assert not [each.line for each in findings if each.state == "fail"]
    assert 0 < findings[0].numbers["vote_s"] < 1
    assert "and named: rank 1 died" in findings[2].says


def test_a_wrong_gradient(tmp_path: Path) -> None:
    finding = certificate.certify(Setting(tmp_path, tmp_path), fault="no_scale")
    assert finding.state == "fail"
    assert "every rank takes the mean over its own samples" in finding.says
