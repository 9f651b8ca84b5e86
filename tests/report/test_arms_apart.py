"""A study whose arms ran one after another, each in a process of its own, beside other launches."""

import json
from pathlib import Path

from synthetic import SEEDS, write_run

from report.conclusions import conclusions
from report.figures import of_appendix
from report.measures import mean, peak, time, within
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


def test_each_launch_of_a_seed_counts(tmp_path: Path) -> None:
    """Means, peaks and parts of a step are of all launches, as ratios are, and each beside its own baseline."""
    for launch, slower in (("first", 1.0), ("second", 2.0)):
        about = {"launch": {"how": "processes", "id": launch, "margin": 0.02}}
        for policy in ("static", "balanced"):
            write_run(tmp_path / "m", policy, steps=20, slower=slower, name=f"{policy}-{launch}", environment=about)
    (found,) = collect([tmp_path / "m"]).measured
    waits = mean(found, "balanced", "plan_wait_share")
    assert waits["low"] is not None, "two launches have an interval"
    assert peak(found, "balanced")["num_launches"] == 2
    assert within(found, "balanced", range(5, 15))["num_launches"] == 2


def test_times_of_other_launches_have_no_part_either(tmp_path: Path) -> None:
    for seed in SEEDS:
        for policy in ("static", "balanced"):
            launch = {"how": "interleaved", "id": f"{policy if seed == 2 else 'both'} {seed}", "margin": 0.02}
            write_run(tmp_path / "m", policy, seed=seed, steps=20, environment={"launch": launch})
    (found,) = collect([tmp_path / "m"]).measured
    assert time(found, "balanced")["low"] is None
    assert within(found, "balanced", range(5, 15)) == {}
