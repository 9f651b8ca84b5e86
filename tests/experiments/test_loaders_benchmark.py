"""The benchmark of loaders: every arm is there, and loads the rank's share."""

import pytest

from experiments.benchmarks.bench import AA
from experiments.benchmarks.loaders import BALANCED, LOADED, PLAIN, TORCH, loading, planning


@pytest.mark.parametrize(("source", "workers"), LOADED)
def test_arms_of_a_loader(source: str, workers: int) -> None:
    found = loading(source, workers, 96, 2, 0)
    assert set(found) == {TORCH, AA, PLAIN, BALANCED}
    assert all(len(seconds) == 2 and (seconds > 0).all() for seconds in found.values())


def test_arms_of_the_sampler_alone() -> None:
    found = planning(512, 1, 0)
    assert [title.partition(", ")[2] for title in found] == ["G = 2, B = 32", "G = 4, B = 32", "G = 8, B = 256"]
    assert all(set(arms) == {"balanced", AA, "static"} for arms in found.values())
