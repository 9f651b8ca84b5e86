"""write_synced: every part arrives, however few bytes the system takes in a call."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpsched.recovery import synced_file
from ddpsched.recovery.synced_file import write_synced

PARTS = st.lists(st.binary(max_size=9), max_size=12)


@given(PARTS, st.integers(1, 7), st.integers(1, 5))
def test_all_parts_are_written(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], most: int, at: int
) -> None:
    writev = os.writev

    def short(file: int, views: Sequence[memoryview]) -> int:
        """As at a limit of the system: only so many bytes."""
        return writev(file, [b"".join(views)[:most]])

    path = tmp_path_factory.mktemp("parts") / "file"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synced_file, "MOST_PARTS", at)
        patch.setattr(os, "writev", short)
        write_synced(path, parts)
    assert path.read_bytes() == b"".join(parts)


def test_a_longer_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    write_synced(path, [b"new"])
    assert path.read_bytes() == b"new"


def test_more_parts_than_the_system_takes(tmp_path: Path) -> None:
    write_synced(tmp_path / "file", [b"ab", memoryview(b"cd")] * (synced_file.MOST_PARTS + 3))
    assert (tmp_path / "file").read_bytes() == b"abcd" * (synced_file.MOST_PARTS + 3)


# a device of Linux, the only disk that is always full
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here, which is as a full disk")
def test_a_full_disk_names_the_file() -> None:
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        write_synced(Path("/dev/full"), [b"x"])
