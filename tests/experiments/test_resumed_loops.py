"""The check of other people's loops: it stops them at the ends of epochs, too, and finds what is repeated or lost."""

import pytest

from experiments.reliability import resumed_loops
from experiments.reliability.resumed_loops import EPOCH, faults_of, stops


def test_stops_are_different_steps_and_the_ends_of_epochs_are_among_them() -> None:
    for count in (5, 12, 29):
        found = stops(count, seed=1)
        assert len(set(found)) == count
        assert {1, EPOCH - 1, EPOCH, EPOCH + 1} <= set(found)


def test_a_loop_that_resumes_exactly_has_no_faults() -> None:
    assert faults_of("torch", 0, 5) == []


def test_a_loop_that_does_not_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that forget what they saved begin anew."""
    whole = [[0, 1]] * 30
    ranks = [(whole, [(whole[:stop], whole) for stop in stops(5, seed=0)])] * 2
    monkeypatch.setattr(resumed_loops, "run_ranks", lambda *_, **__: None)
    monkeypatch.setattr(resumed_loops, "answers", lambda _: ranks)
    found = faults_of("torch", 0, 5)
    assert sum("other samples than without" in fault for fault in found) == 5
