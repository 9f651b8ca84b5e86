"""A module is loaded from a package whose ``__init__`` cannot be run."""

import sys
from pathlib import Path

import pytest

from ddpsched.errors import PeerMissing
from ddpsched.peers.packages import need, need_alone


@pytest.fixture
def heavy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create a package that breaks when it is imported, with one module that can be loaded."""
    room = tmp_path / "heavy" / "utils"
    room.mkdir(parents=True)
    (tmp_path / "heavy" / "__init__.py").write_text("raise RuntimeError('no such device')")
    (room / "__init__.py").write_text("import heavy.everything")
    (room / "light.py").write_text("from heavy.protocol import Proto\nimport heavy.utils.names\nproto = Proto\n")
    (room / "names.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("heavy")
def test_a_module_is_had_without_the_packages_above_it() -> None:
    light = need_alone("heavy.utils.light", "heavy", without=["heavy.protocol"])
    assert light.__name__ == "heavy.utils.light"
    assert light.proto is None
    assert not [name for name in sys.modules if name.startswith("heavy")]


@pytest.mark.usefixtures("heavy")
def test_what_it_still_lacks_is_the_reason() -> None:
    with pytest.raises(
        PeerMissing, match=r"heavy\.utils\.light cannot be imported .*No module named 'heavy\.protocol'"
    ):
        need_alone("heavy.utils.light", "heavy")
    assert not [name for name in sys.modules if name.startswith("heavy")]


@pytest.mark.usefixtures("heavy")
def test_a_package_that_breaks_is_missing() -> None:
    with pytest.raises(PeerMissing, match=r"heavy cannot be imported \(RuntimeError: no such device\); pip install it"):
        need("heavy", "it")


def test_a_package_that_is_here_stays_as_it_was() -> None:
    before = sys.modules["pytest"]
    assert need_alone("_pytest.stash", "pytest").Stash is not None
    assert sys.modules["pytest"] is before
    assert sys.modules["_pytest.stash"].Stash is need("_pytest.stash", "pytest").Stash
