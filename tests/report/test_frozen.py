"""The committed report's comparisons of times have at least five launches behind them."""

from pathlib import Path

from report.results import read

LEAST = 5


def test_frozen_comparisons_have_five_launches() -> None:
    results = read(Path(__file__).parents[2] / "report" / "results")
    seeds = {each.name: {arm: len(runs) for arm, runs in each.setting.arms.items()} for each in results.measured}
    assert all(min(arms.values()) >= LEAST for arms in seeds.values()), seeds
    tables = [*results.synchronisers, *(link for table in results.two_hosts for link in table["links"])]
    assert tables
    assert all(len(row["launches_s"]) >= LEAST for table in tables for row in table["rows"])
    assert all(row["repeats"] >= LEAST for table in results.simulator for row in table["rows"])
    assert all(len(file.launches) >= LEAST for file in results.trainers.values() if hasattr(file, "launches"))
