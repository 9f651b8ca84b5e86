"""Measurements of policy auto in short, for tests that don't ask how exact they are."""

import pytest

from ddpsched.advise import choice, trials
from ddpsched.training import compiled_times, trial_times


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure fewer micro-batches, in fewer passes, and try fewer steps."""
    monkeypatch.setattr(choice, "SHAPES", 8)  # of which a fit needs 6, and each fourth is left out of it
    monkeypatch.setattr(choice, "ROWS", 4)
    monkeypatch.setattr(trial_times, "MOST_PASSES", 2)
    monkeypatch.setattr(trials, "MOST", 2)
    monkeypatch.setattr(compiled_times, "SHAPES", 2)
    monkeypatch.setattr(compiled_times, "PAIRS", 2)
