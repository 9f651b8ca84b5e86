"""A study whose arms ran one after another, each in a process of its own, beside other launches."""

import json
from pathlib import Path

from synthetic import SEEDS, write_run

from report.conclusions import conclusions
from report.figures import of_appendix
from report.render import tables
from report.results import collect


def test_times_of_arms_that_met_other_launches_are_not_compared(tmp_path: Path) -> None:
    for seed in SEEDS:
        for turn, policy in enumerate(("static", "balanced")):
            launch = {"how": "processes", "id": f"launch {seed}", "margin": 0.02}
            run = write_run(tmp_path / "m", policy, seed=seed, steps=20, environment={"launch": launch})
            status = json.loads((run / "status.json").read_text())
            span = {"started": f"2026-01-01T0{turn}:00:00", "finished": f"2026-01-01T0{turn + 1}:00:00"}
            (run / "status.json").write_text(json.dumps(status | span))
    found = collect([tmp_path / "m"])
    page = tables(found, {}, "t")
    assert "times here are no comparison" in page
    assert "- **balanced**" not in page
    assert {c["id"].partition("@")[0] for c in conclusions(found.measured) if c["timed"]} == {
        "balanced-wait-share", "balanced-wait-p95", "balanced-memory", "static-proxy",
    }  # fmt: skip
    assert list(of_appendix(found)) == []
