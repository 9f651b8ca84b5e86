"""The committed report is what its frozen records give, and its comparisons of times have five launches behind them."""

from pathlib import Path

import pytest

from report import front
from report.build import build
from report.pdf import num_pages
from report.reproduce import compare, outcome, throughputs, verdicts
from report.results import Measured, Results, collect, read
from report.same_work import check_same_work, check_whole

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "report"
LEAST = 5


@pytest.fixture(scope="module")
def results() -> Results:
    return read(REPORT / "results")


def test_what_is_frozen(results: Results, tmp_path: Path) -> None:
    """Every byte of text and figures, and ten pages of them."""
    build(results, tmp_path)
    names = {path.relative_to(tmp_path) for path in tmp_path.rglob("*.*")}
    documents = {Path(f"{stem}{suffix}") for stem in ("report", "appendix") for suffix in (".md", ".html", ".pdf")}
    assert documents < names
    for name in names:
        assert (tmp_path / name).read_bytes() == (REPORT / name).read_bytes(), f"{name}: make report"
    assert num_pages((REPORT / "report.pdf").read_bytes()) <= 10
    assert front.block(results) in (ROOT / "README.md").read_text(encoding="utf-8")
    assert verdicts(results)
    assert all(isinstance(each, Measured) for each in results.measured)


def test_frozen_comparisons_have_five_launches(results: Results) -> None:
    arms = {each.setting.slug: each.setting.arms for each in results.measured}
    seeds = {slug: {arm: len(runs) for arm, runs in each.items()} for slug, each in arms.items()}
    assert seeds
    assert all(min(arms.values()) >= LEAST for arms in seeds.values()), seeds
    links = [link for table in results.two_hosts for link in table["links"]]
    policies = [policy for table in results.compiled for policy in table["policies"]]
    assert results.synchronisers
    assert links
    assert policies
    timed = [row for table in (*results.synchronisers, *links, *policies) for row in table["rows"]]
    assert all(len(row["launches_s"]) >= LEAST for row in timed if not row.get("failed"))
    assert all(row["repeats"] >= LEAST for table in results.simulator for row in table["rows"])
    assert all(len(file.launches) >= LEAST for file in results.trainers.values() if hasattr(file, "launches"))


@pytest.mark.slow
def test_repeats_are_what_their_records_give(results: Results) -> None:
    """Each outcome whose records were kept, computed anew."""
    kept = [each for each in results.reproduced if each["records"]]
    assert kept
    for told in kept:
        alone, fresh = results.only(told["study"]), collect([told["records"]])
        check_same_work(alone, fresh, told["records"])
        check_whole(alone, fresh, told["records"])
        found = outcome(compare(verdicts(alone), verdicts(fresh)))
        assert found == {name: told[name] for name in found}
        for row, before in zip(throughputs(fresh), told["throughputs"], strict=True):
            assert row == before | {end: pytest.approx(before[end]) for end in ("ratio", "low", "high")}
