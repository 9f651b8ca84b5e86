"""The means of steps and ranks, against the same by hand."""

import math

import pytest
from made_runs import record

from ddpsched.monitor.summary import arrays_of, summarise

STEPS = [record(step, rank) for step in range(5) for rank in range(2)]


def test_means_by_hand() -> None:
    found = summarise(arrays_of(STEPS), by_tokens=False)
    assert (found.num_steps, found.last, found.epoch) == (5, 4, 0)
    assert found.step_s == pytest.approx(0.1)
    assert found.max_over_mean_compute == pytest.approx(0.08 / 0.065)
    assert found.padding == pytest.approx(0.25)
    assert found.waiting == pytest.approx((0.02 + 0.05) / 0.2)
    assert found.samples_per_s == pytest.approx(8 / 0.1)
    assert found.tokens_per_s == pytest.approx(60 / 0.1)
    assert found.pace == pytest.approx(5.0)  # a step each 0.2 s, half of which is spent elsewhere
    assert [(each.rank, each.compute_s, each.wait_s) for each in found.ranks] == [
        (0, pytest.approx(0.08), pytest.approx(0.02)), (1, pytest.approx(0.05), pytest.approx(0.05)),
    ]  # fmt: skip


def test_losses_weigh_what_they_are_means_over() -> None:
    rows = [
        record(0, 0, num_samples=1, num_targets=30, loss=1.0),
        record(0, 1, num_samples=3, num_targets=10, loss=2.0),
    ]
    assert summarise(arrays_of(rows), by_tokens=False).loss == pytest.approx(1.75)
    assert summarise(arrays_of(rows), by_tokens=True).loss == pytest.approx(1.25)


def test_a_loss_that_is_nan_is_not_hidden_and_a_missing_one_is_left_out() -> None:
    assert math.isnan(summarise(arrays_of([record(0, 0, loss=math.nan), record(0, 1)]), by_tokens=False).loss or 0.0)
    assert summarise(arrays_of([record(0, 0, loss=None), record(0, 1, loss=0.7)]), by_tokens=False).loss == 0.7
    assert summarise(arrays_of([record(0, 0, num_samples=0, loss=math.nan)]), by_tokens=False).loss is None


def test_what_was_not_measured_is_none() -> None:
    """As of a loop of one's own without its model, and of a simulated run."""
    bare = dict.fromkeys(("compute_s", "wait_s", "step_s", "unix_s", "loss", "lr"))
    found = summarise(arrays_of([record(step, **bare) for step in range(3)]), by_tokens=True)
    assert (found.step_s, found.waiting, found.max_over_mean_compute, found.pace, found.loss) == (None,) * 5
    assert (found.samples_per_s, found.tokens_per_s, found.lr) == (None,) * 3
    assert found.ranks[0].compute_s is None
