"""A study without some runs of the baseline, of its second run or of another arm: the others are compared and told."""

import shutil
from pathlib import Path

import pytest
from synthetic import SEEDS, write_run

from analysis.compare_runs import compared
from ddpsched.errors import DataError
from report.render import tables
from report.results import collect

ARMS = {"static": {}, "again": {"aa": True}, "balanced": {}}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outputs") / "study"
    for name, options in ARMS.items():
        for seed in SEEDS:  # further seeds may have fewer steps
            policy = "balanced" if name == "balanced" else "static"
            write_run(folder, policy, name=f"{name}-{seed}", seed=seed, steps=12 if seed else 20, options=options)
    return folder


@pytest.mark.parametrize("lost", [(0,), (2,), (0, 1, 2)])
@pytest.mark.parametrize("arm", ARMS)
def test_what_is_there_is_compared(arm: str, lost: tuple[int, ...], whole: Path, tmp_path: Path) -> None:
    study = Path(shutil.copytree(whole, tmp_path / "study"))
    for seed in lost:
        for file in (study / f"{arm}-{seed}").glob("records*"):
            file.unlink()
    results = collect([study])
    page = tables(results, {}, "t")
    assert set(results.studies["study"].left_out) == {f"{arm}-{seed}" for seed in lost}
    assert all(f"{arm}-{seed}" in page for seed in lost)
    if arm == "static" and len(lost) == len(SEEDS):
        with pytest.raises(DataError, match="no arm is the baseline"):
            compared(study)
        return
    (table,) = compared(study)
    assert table["baseline"] == "static"
    launches = {row["arm"]: row["num_launches"] for row in table["ratios"] if row["column"] == "step_s"}
    expected = {"A/A": {"again", "static"}, "balanced": {"balanced", "static"}}
    kept = {name: len(SEEDS) - len(lost) if arm in pair else len(SEEDS) for name, pair in expected.items()}
    assert launches == {name: count for name, count in kept.items() if count}
    assert ("balanced / static" in page) == ("balanced" in launches)
