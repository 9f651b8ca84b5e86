"""Fixtures for all rooms: where real data lies, and a token cache that is thrown away."""

import gc
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from longest import LONGEST

from ddpsched import local_ranks

os.environ.setdefault("OMP_NUM_THREADS", "1")  # as ranks have; tests run side by side
# a busy machine takes its time
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
local_ranks.PRELOADED += ["pandas", "pytest"]  # what nearly every rank of a test imports, in half a second or more
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's job in the background; tests send Ctrl-C to processes
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data: ``$DDPSCHED_DATA``, or ``../shared/data`` from the repository; else the test skips."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("DDPSCHED_DATA") or default)
    if not (folder / "sst2" / "train.tsv").exists():  # real data is not part of the project
        pytest.skip(f"no sst2/train.tsv in {folder}; point DDPSCHED_DATA at a folder that has it")
    return folder


@pytest.fixture(scope="session", autouse=True)
def _throwaway_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    temporary = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # one cache for all workers, whose folders lie in the session's
        temporary = temporary.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DDPSCHED_CACHE", str(temporary / "cache"))
        yield


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own, for what it measures itself, on a busy machine too."""
    monkeypatch.setenv("DDPSCHED_CACHE", str(tmp_path / "kept"))
    monkeypatch.setattr("ddpsched.costs.step_times.NOISY", 99.0)
    return tmp_path / "kept"


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let policy auto measure fewer micro-batches, in fewer passes, and try fewer steps."""
    monkeypatch.setattr("ddpsched.advise.choice.SHAPES", 8)  # a fit needs 6, and each fourth is left out of it
    monkeypatch.setattr("ddpsched.advise.choice.ROWS", 4)
    monkeypatch.setattr("ddpsched.training.trial_times.MOST_PASSES", 2)
    monkeypatch.setattr("ddpsched.advise.trials.MOST", 2)
    monkeypatch.setattr("ddpsched.training.compiled_times.SHAPES", 2)
    monkeypatch.setattr("ddpsched.training.compiled_times.PAIRS", 2)


@pytest.fixture(scope="module", autouse=True)
def _small_heap() -> None:
    """Spare later collections what is there by now: with torch loaded a whole one takes half a second."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, so that no worker is left with one at the end."""
    items.sort(key=lambda item: item.path.stem not in LONGEST)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-skips", action="store_true", help="a test that is skipped fails, with the reason")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and item.config.getoption("--no-skips"):
        report.outcome = "failed"
        report.longrepr = f"skipped: {call.excinfo.value if call.excinfo else 'no reason'}"
    return report
