"""Numbers of figures that follow from plans agree with the planner's own, and show what they are for."""

from pathlib import Path

import numpy as np
import pytest

from analysis.step_blocks import yardstick
from ddpsched.compare import Question
from ddpsched.compare.arms import measure
from ddpsched.data.embedded.length_histogram import sst2_lengths
from experiments.planned import ARMS, main, one_step, scaling, shifting, unequal

LENGTHS = sst2_lengths(960, np.random.default_rng(0))


def test_one_step_has_the_planner_s_yardstick() -> None:
    lengths = LENGTHS[:32]
    blocks = one_step(lengths)
    for arm, table in blocks.items():
        question = Question(lengths, 4, 32)
        row = measure(question, arm, question.spec({"policy": ARMS[arm], "order": {"kind": "sequential"}}))
        assert row.figures is not None
        assert yardstick(table)[0] == pytest.approx(row.figures.yardstick)
        assert table.loc[table["kind"] == "real", "tokens"].sum() == lengths.sum()
    assert "padding" not in set(blocks["packed"]["kind"])


def test_scaling_leaves_the_slow_peer_out_of_many_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.planned.MOST_RANKS_OF_PEER", 4)
    found = scaling(LENGTHS, (4, 8), ("static", "packed", "karmarkar_karp"))
    table = found.pivot_table(index="world_size", columns="arm", values="yardstick")
    assert (table["static"] > 2).all()
    assert (table["packed"] < 1.1).all()
    assert list(found[found["arm"] == "karmarkar_karp"]["world_size"]) == [4]


def test_shift_follows_the_segments() -> None:
    found, changes = shifting([("short", LENGTHS[:320]), ("equal", np.full(320, 40))], arms=("static", "balanced"))
    assert changes == [(0, "short"), (10, "equal")]
    static = found[found["arm"] == "static"]["load"].to_numpy()
    assert len(static) == 20
    assert (static[:10] > 1.5).all()
    assert static[10:] == pytest.approx(1.0), "equal lengths need no balance"


def test_learning_speeds_shortens_steps() -> None:
    step = unequal(LENGTHS).set_index(["arm", "learning"])["step"]
    assert list(step.index) == [
        ("static", False), ("balanced", False), ("balanced", True), ("packed", False), ("packed", True),
    ]  # fmt: skip
    assert step["balanced", True] < step["balanced", False] < step["static", False]
    assert 1 <= step["packed", True] < step["packed", False]


def test_command_draws_what_the_data_allow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--ranks", "4"]) == 0
    printed = capsys.readouterr().out.split()
    assert [Path(each).name for each in printed] == ["step-blocks.png", "scaling.png", "unequal.png"]
    assert all(Path(each).stat().st_size > 5_000 for each in printed)


def test_missing_data_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--ranks", "4", "--data", str(tmp_path / "nothing")]) == 1
    assert "nothing/sst2/train.tsv: no such file" in capsys.readouterr().err
