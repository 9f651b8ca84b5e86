"""Fixtures for all rooms: where real data lies, and a token cache that is thrown away."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data: ``$DDPSCHED_DATA``, or ``../shared/data`` from the repository; else the test skips."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("DDPSCHED_DATA") or default)
    if not (folder / "sst2" / "train.tsv").exists():
        pytest.skip(f"no sst2/train.tsv in {folder}; point DDPSCHED_DATA at a folder that has it")
    return folder


@pytest.fixture(scope="session", autouse=True)
def _throwaway_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DDPSCHED_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
