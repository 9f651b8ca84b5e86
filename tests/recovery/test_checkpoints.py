"""Checkpoints on the disk: complete or not there, and refused where a bit differs."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpsched.errors import DataError
from ddpsched.recovery.checkpoints import CHECKPOINTS, MANIFEST, Checkpoints, verified


def write(checkpoints: Checkpoints, step: int) -> Path:
    aside = checkpoints.begin(step)
    (aside / "weights.safetensors").write_bytes(bytes(range(256)) * 4)
    return checkpoints.commit(step, {"position": {"step": step}})


def test_newest_is_found_and_older_ones_are_removed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    assert checkpoints.newest() is None
    for step in (5, 10, 100):
        write(checkpoints, step)
    newest = checkpoints.newest()
    assert newest is not None
    assert newest.state == {"position": {"step": 100}}
    assert sorted(path.name for path in checkpoints.path.iterdir()) == ["step-00000010", "step-00000100"]


def test_one_that_was_not_completed_does_not_exist(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    write(checkpoints, 5)
    (checkpoints.begin(10) / "weights.safetensors").write_bytes(b"half")
    newest = checkpoints.newest()
    assert newest is not None
    assert newest.path.name == "step-00000005"
    checkpoints.forget_after(5)
    assert [path.name for path in checkpoints.path.iterdir()] == ["step-00000005"]


def test_forget_after_removes_later_ones(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in (5, 10, 15):
        write(checkpoints, step)
    checkpoints.forget_after(10)
    assert sorted(path.name for path in checkpoints.path.iterdir()) == ["step-00000005", "step-00000010"]


@settings(deadline=None, max_examples=60)
@given(place=st.integers(0, 10**6), bit=st.integers(0, 7), file=st.integers(0, 2))
def test_any_flipped_bit_is_refused(tmp_path_factory: pytest.TempPathFactory, place: int, bit: int, file: int) -> None:
    folder = tmp_path_factory.mktemp("run")
    path = write(Checkpoints(folder, keep=1), 5)
    damaged = sorted(path.iterdir())[file]
    data = bytearray(damaged.read_bytes())
    data[place % len(data)] ^= 1 << bit
    damaged.write_bytes(bytes(data))
    with pytest.raises(DataError, match="step-00000005"):
        verified(path)


def test_damaged_one_is_named_and_the_one_before_is_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    write(checkpoints, 5)
    (write(checkpoints, 10) / "weights.safetensors").write_bytes(b"other")
    newest = checkpoints.newest()
    assert newest is not None
    assert newest.path.name == "step-00000005"
    assert "step-00000010/weights.safetensors is not what was written" in caplog.text


def test_where_all_are_damaged_a_run_does_not_begin_anew_unasked(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (5, 10):
        (write(checkpoints, step) / "state.json").unlink()
    with pytest.raises(DataError, match=r"every checkpoint is damaged .* begin anew with --restart"):
        checkpoints.newest()
    shutil.rmtree(tmp_path / CHECKPOINTS)
    assert checkpoints.newest() is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"format": 1}', "[" * 100_000, '{"format": 1, "files": {}, "digest": 0}']
)
def test_manifest_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    path = write(Checkpoints(tmp_path, keep=1), 5)
    (path / MANIFEST).write_text(text)
    with pytest.raises(DataError, match=MANIFEST):
        verified(path)
