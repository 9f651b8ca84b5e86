"""The committed report's comparisons of times have at least five launches behind them."""

from pathlib import Path

from analysis.settings import settings
from report.results import read

LEAST = 5


def test_frozen_comparisons_have_five_launches() -> None:
    results = read(Path(__file__).parents[2] / "report" / "results")
    found = [setting for study in results.studies.values() for setting in settings(study.runs)]
    seeds = {setting.slug: {arm: len(runs) for arm, runs in setting.arms.items()} for setting in found}
    assert all(min(arms.values()) >= LEAST for arms in seeds.values()), seeds
    tables = [*results.synchronisers, *(link for table in results.two_hosts for link in table["links"])]
    assert tables
    assert all(len(row["launches_s"]) >= LEAST for table in tables for row in table["rows"])
    assert all(row["repeats"] >= LEAST for table in results.simulator for row in table["rows"])
    assert all(len(file.launches) >= LEAST for file in results.trainers.values() if hasattr(file, "launches"))
