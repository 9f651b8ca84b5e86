"""A folder of kept measurements for each test of policy auto, as each measures for itself."""

from pathlib import Path

import pytest

from ddpsched.costs.step_times import KEPT


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(KEPT, str(tmp_path / "kept"))
    return tmp_path / "kept"
