"""Arrays that are kept belong to one user and are what was written; no pickle is opened."""

import os
from pathlib import Path

import numpy as np
import pytest

from ddpsched.data import array_cache
from ddpsched.data.array_cache import load_arrays, refusal, save_arrays, write_arrays
from ddpsched.data.embedded.sentences import embedded_tokenizer
from ddpsched.data.token_table import tokenise

ARRAYS = {"a": np.arange(5), "b": np.zeros((0, 2)), "c": np.array(3)}


def same(found: dict[str, np.ndarray] | None) -> bool:
    return found is not None and all(np.array_equal(found[name], value) for name, value in ARRAYS.items())


def test_files_are_the_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "x.npz"
    save_arrays(path, **ARRAYS)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert same(load_arrays(path))
    assert [each.name for each in path.parent.iterdir()] == ["x.npz"]


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_not_read(tmp_path: Path, mode: int) -> None:
    write_arrays(tmp_path / "x.npz", ARRAYS)
    (tmp_path / "x.npz").chmod(mode)
    assert load_arrays(tmp_path / "x.npz") is None
    (tmp_path / "x.npz").chmod(0o644)
    assert same(load_arrays(tmp_path / "x.npz"))


def test_a_file_of_another_user_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_arrays(tmp_path / "x.npz", ARRAYS)
    other = os.geteuid() + 1
    monkeypatch.setattr(array_cache.os, "geteuid", lambda: other)
    assert load_arrays(tmp_path / "x.npz") is None
    assert "another user owns it" in str(refusal(tmp_path))


def test_a_link_is_not_read(tmp_path: Path) -> None:
    write_arrays(tmp_path / "x.npz", ARRAYS)
    (tmp_path / "y.npz").symlink_to(tmp_path / "x.npz")
    assert load_arrays(tmp_path / "y.npz") is None


def test_other_arrays_than_were_written_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    write_arrays(path, ARRAYS)
    with np.load(path) as file:
        stored = dict(file)
    for changed in (
        {**stored, "a": stored["a"] + 1}, {**stored, "d": stored["a"]}, {**stored, "a": stored["a"].astype("int32")},
        {name: value for name, value in stored.items() if name != "digest"}, ARRAYS,
    ):  # fmt: skip
        np.savez(path, **changed)
        path.chmod(0o600)
        assert load_arrays(path) is None
    np.savez(path, **stored)
    assert same(load_arrays(path))


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    np.savez(tmp_path / "x.npz", a=np.array([Opener(marker)], dtype=object))
    assert load_arrays(tmp_path / "x.npz") is None
    assert not marker.exists()


class Opener:
    """A value that makes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.marker), "w")


def test_a_folder_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.warns(UserWarning, match=r"mode 777\): it is not used; set DDPSCHED_CACHE to a folder of your own"):
        table = tokenise(embedded_tokenizer(), ["a b"], 8, folder)
    assert len(table) == 1
    assert not list(folder.iterdir())
    folder.chmod(0o755)
    tokenise(embedded_tokenizer(), ["a b"], 8, folder)
    assert len(list(folder.iterdir())) == 1
