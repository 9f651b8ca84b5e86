"""Limits of containers are read, in both versions of cgroups."""

from pathlib import Path

import pytest

from ddpsched.machine import free_memory, memory_below_limit, num_processors, processor_limit


def write(folder: Path, **texts: str) -> None:
    """Write files by name, in which ``__`` stands for a dot."""
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_this_machine() -> None:
    assert num_processors() >= 1
    assert 0 < (free_memory() or 0) < 2**50


def test_memory_below_a_limit(tmp_path: Path) -> None:
    write(tmp_path, memory__max="5000\n", memory__current="3000\n", memory__stat="anon 1\nfile_dirty 5\nfile 700\n")
    assert memory_below_limit(tmp_path) == 2700
    write(tmp_path, memory__max="max\n")
    assert memory_below_limit(tmp_path) is None
    assert memory_below_limit(tmp_path / "absent") is None


def test_memory_below_a_limit_of_version_1(tmp_path: Path) -> None:
    values = {"memory__limit_in_bytes": "5000\n", "memory__usage_in_bytes": "3000\n"}
    write(tmp_path / "memory", memory__stat="cache 600\ntotal_cache 700\n", **values)
    assert memory_below_limit(tmp_path) == 2700
    write(tmp_path / "memory", memory__limit_in_bytes="9223372036854771712\n")
    assert memory_below_limit(tmp_path) is None


def test_a_limit_of_processor_time(tmp_path: Path) -> None:
    assert processor_limit(tmp_path) is None
    write(tmp_path, cpu__max="150000 100000\n")
    assert processor_limit(tmp_path) == 1.5
    write(tmp_path, cpu__max="max 100000\n")
    assert processor_limit(tmp_path) is None


@pytest.mark.parametrize(("quota", "limit"), [("50000", 0.5), ("-1", None)])
def test_a_limit_of_processor_time_of_version_1(tmp_path: Path, quota: str, limit: float | None) -> None:
    write(tmp_path / "cpu", **{"cpu__cfs_quota_us": quota, "cpu__cfs_period_us": "100000\n"})
    assert processor_limit(tmp_path) == limit
