"""Sentences on transformers' Trainer, of frozen launches and of such launches with other times."""

from pathlib import Path

import pytest

from experiments.trainers.frozen import read
from report.in_trainer import Trainers

STEPS = Path(__file__).parents[2] / "report" / "results" / "trainers" / "steps-distilbert.json"


@pytest.mark.parametrize(("factor", "said"), [(1.0, True), (2.0, False), (0.8, False)])
def test_a_time_that_is_not_told_apart_from_batch_rebalances_is_said_where_it_is_longer(
    factor: float, said: bool
) -> None:
    file = read(STEPS)
    for launch in file.launches:  # type: ignore[attr-defined]
        launch.seconds["balanced"] = [factor * each for each in launch.seconds["balanced"]]
    found = Trainers({"steps-distilbert": file}).close_in_trainer()
    assert bool(found) == said
    assert ("`balanced` took 1.0" in found and "no farther from 1 than A/A reaches" in found) == said
