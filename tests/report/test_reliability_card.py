"""The reliability card: its lines follow the checks and their findings, and what does not hold is said."""

from pathlib import Path

from experiments.reliability.checks import CHECKS
from experiments.reliability.findings import Finding
from report.build import build_tables
from report.reliability import card, detections, said
from report.render import tables
from report.results import Results

MACHINE = {"cpu": "a processor", "cores": 2}
DIGESTS = Finding("digests", "Plan digests", "equal", "all equal", True, "python -m x", {}, "2026-02-01", MACHINE)
HEALTHY = Finding(
    "healthy", "Healthy runs", "100 of 100", "99 of 100", False,
    "python -m experiments.reliability.healthy --count 100", {}, "2026-02-03", MACHINE,
)  # fmt: skip
CASES = [
    {"kind": "dies", "seconds": 0.2}, {"kind": "hangs", "seconds": 20.0}, {"kind": "dies", "seconds": 0.6},
    {"kind": "dies", "seconds": 0.3}, {"kind": "hangs", "seconds": None},
]  # fmt: skip
FAULTS = Finding("faults", "Planted faults", "all named", "4 of 5", True, "python -m y", {"cases": CASES})


def test_a_line_for_each_check_in_their_order() -> None:
    rows = card({"healthy": HEALTHY, "digests": DIGESTS, "old": FAULTS})
    assert [row.command for row in rows[: len(CHECKS)] if row.holds is None] == [
        CHECKS[name] for name in CHECKS if name not in ("digests", "healthy")
    ]
    assert [row.title for row in rows if row.holds is not None] == ["Plan digests", "Healthy runs", "Planted faults"]
    assert next(row for row in rows if row.title == "Healthy runs").command == "healthy --count 100"
    assert {row.measured for row in rows if row.holds is None} == {"not measured"}
    others = len(CHECKS) - 2
    assert f"2 hold, 1 does not (Healthy runs), and {others} are not measured" in said(rows)


def test_seconds_to_detect_by_kind() -> None:
    dies, hangs = detections({"faults": FAULTS})
    assert (dies.kind, dies.cases, dies.median_s, dies.max_s) == ("dies", 3, 0.3, 0.6)
    assert (hangs.kind, hangs.cases, hangs.max_s) == ("hangs", 2, 20.0)
    assert detections({"healthy": HEALTHY}) == []


def test_the_report_has_the_card(tmp_path: Path) -> None:
    assert "## Reliability" not in tables(Results(), {}, "t")
    page = build_tables(Results(findings={"healthy": HEALTHY, "faults": FAULTS}), tmp_path / "report")
    text = page.with_suffix(".md").read_text()
    assert "| Healthy runs | 100 of 100 | 99 of 100 | **no** | 2026-02-03 | healthy --count 100 |" in text
    assert "| planned kills | – | not measured | not measured | – | exactly\\_once kills |" in text
    assert "| dies | 3 | 300 ms | 600 ms |" in text
    assert "<strong>no</strong></td>" in page.read_text()
