"""The section on a slow link says how much crosses it whatever its rate."""

from dataclasses import replace
from pathlib import Path

from synthetic import write_virtual

from report.render import report
from report.results import collect


def test_a_step_over_a_slow_link_is_beside_what_crosses_at_once(tmp_path: Path) -> None:
    results = collect([write_virtual(tmp_path / "virtual")])
    rows = [
        {"arm": arm, "step_s": 1.0, "exposed_s": 0.5, "exposed_share": 0.5, "verdict": "", "ratio": None}
        for arm in ("ddp, static", "ddp, balanced", "A/A")
    ]
    about = {"device": "a CPU", "num_launches": 5, "num_steps": 20, "model": "tiny", "global_batch": 32}
    about |= {"links": [{"rate": "1gbit", "rows": rows}], "step_bytes": 601_864, "link_bucket_bytes": 16_384}
    assert "gradients are 0.6 MB, 37 times what the filter lets through at once" in report(
        replace(results, two_hosts=[about]), {}
    )
