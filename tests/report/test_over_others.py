"""Plans beside those of other packages, and an arm that several studies have."""

from pathlib import Path

import pytest
from synthetic import write_arm, write_virtual

from report.figures import _joined_speeds
from report.measures import against, each_once, speed
from report.over_others import beside_strongest, near_strongest, over_rivals, packing_in_short
from report.results import Measured, collect
from report.sentences import arm_rows, floors, gains, how_many


@pytest.fixture(scope="module")
def virtual(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    root = tmp_path_factory.mktemp("outputs")
    write_virtual(root / "virtual")
    (measured,) = collect([root / "virtual"]).measured
    return measured


def test_over_the_strongest(virtual: Measured) -> None:
    said = str(beside_strongest(virtual, "four processes"))
    found = against(virtual, "batch_rebalance", "balanced")
    assert said.startswith(
        "On four processes, in the same launches, the throughput over `batch_rebalance` is: `balanced`"
    )
    assert f"`balanced` {found['ratio']:.2f} (" in said
    assert "`packed`" in said
    assert near_strongest(virtual, "balanced") in ("above", "below", "not told apart from")


def test_over_rivals(virtual: Measured, monkeypatch: pytest.MonkeyPatch) -> None:
    assert over_rivals(virtual) == "", "no rival of the same rows ran"
    monkeypatch.setattr("report.over_others.RIVALS", (("balanced", "minmax"), ("packed", "flattening")))
    said = str(over_rivals(virtual))
    found = against(virtual, "minmax", "balanced")
    assert f"`balanced` over `minmax` {found['ratio']:.2f} (" in said
    assert "flattening" not in said
    assert packing_in_short(virtual) == "", "random rows without padding did not run"
    monkeypatch.setattr("report.over_others.PACKED_AND_RANDOM", ("balanced", "minmax"))
    assert f" {found['ratio']:.2f} times the throughput of random batches" in packing_in_short(virtual)
    assert "partitioned as verl does" not in packing_in_short(virtual), "such rows did not run"


def test_an_arm_of_two_studies_is_that_of_the_first(virtual: Measured, tmp_path: Path) -> None:
    for study, slower in (("peer", 1.0), ("batches", 3.0)):
        write_arm(tmp_path / study, "static", aa=True, steps=20)
        write_arm(tmp_path / study, "balanced", slower=slower, steps=20)
    write_arm(tmp_path / "batches", "packed", steps=20)
    found = collect([tmp_path / "peer", tmp_path / "batches"])
    both = found.of("peer", "batches")
    peer, batches = both
    assert each_once(both) == [(peer, "balanced"), (batches, "packed")]
    assert each_once(reversed(both)) == [(batches, "balanced"), (batches, "packed")]
    first, second = (speed(m, "balanced")["ratio"] for m in both)
    assert first > second
    assert gains(both).startswith(f"{first:.2f} with `balanced`")
    assert gains(both).endswith("with `packed` in launches of its own")
    assert "own" not in gains([peer])
    assert gains([batches, peer]).startswith(f"{second:.2f} with `balanced`")
    assert str(floors(both)).count("`balanced`") == 1
    (row,) = (row for row in arm_rows(virtual, None, both) if row[0] == "`balanced`")
    assert row[-2].startswith(f"{first:.2f} (")
    assert "2 of 2 arms are faster on four processes" in how_many(virtual, both)
    assert [str(arm) for arm in _joined_speeds(both)["arm"]].count("balanced") == 1
