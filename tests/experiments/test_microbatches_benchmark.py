"""The table of plans before and after a change."""

import numpy as np

from experiments.benchmarks import microbatches
from experiments.benchmarks.microbatches import EXAMPLE, measure, table


def test_against_costs_of_another_version(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(microbatches, "cases", lambda folder: iter([("two", [np.array(EXAMPLE)] * 2, 2)]))
    costs, proved, dearer = measure(None)
    assert costs == {"two, M = 2": [104, 104], "two, M = 4": [103, 103], "two, M = 8": [103, 103]}
    assert set(proved.values()) == {1}
    assert set(dearer.values()) == {0}
    before = {name: [200, 100] for name in costs}
    lines = list(table(costs, proved, dearer, before))
    assert lines[2] == "| two, M = 2 | 208 | 100.0% | 0 | 300 | 50.0% | 50.0% | 1.4423 | 1.923 |"
    assert len(set(line.count("|") for line in lines)) == 1
    assert len(set(line.count("|") for line in table(costs, proved, dearer, None))) == 1
