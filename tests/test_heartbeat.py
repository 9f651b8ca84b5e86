"""Heart-beats tell which rank the others wait for."""

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddpsched.guard import Guard
from ddpsched.heartbeat import PHASES, Heartbeat, behind
from ddpsched.world import World


@pytest.fixture
def hearts(tmp_path: Path) -> list[Heartbeat]:
    (tmp_path / "logs").mkdir()
    return [Heartbeat(tmp_path / "logs", rank) for rank in range(3)]


def test_the_rank_that_is_behind_is_found(hearts: list[Heartbeat], tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    assert behind(logs, 3) == [], "all are at the same place"
    for heart in hearts:
        heart.beat("forward", 4)
        heart.collective()
    hearts[0].collective()
    hearts[2].beat("vote", 4)
    (last,) = behind(logs, 3)
    assert (last.rank, last.step, last.phase, last.collectives) == (1, 4, "forward", 1)
    assert "in forward of step 4, 1 collectives begun, 0 s ago" in str(last)
    hearts[1].beat("forward", 5)
    assert [sign.rank for sign in behind(logs, 3)] == [0], "counts begin anew with each step"
    assert behind(logs, 4) == [], "rank 3 is unknown"


def test_phases_rise_within_a_step(hearts: list[Heartbeat], tmp_path: Path) -> None:
    for earlier, later in pairwise(PHASES):
        hearts[0].beat(later, 1)
        hearts[1].beat(earlier, 1)
        hearts[2].beat(later, 1)
        assert [sign.rank for sign in behind(tmp_path / "logs", 3)] == [1]


def test_a_time_out_names_the_rank_that_was_waited_for(hearts: list[Heartbeat], tmp_path: Path) -> None:
    for heart in hearts:
        heart.beat("backward", 7)
    hearts[2].beat("forward", 7)
    rank: Any = SimpleNamespace(_world=World(0, 3), _watch=None, _folder=SimpleNamespace(path=tmp_path))
    rank._awaited = lambda: Guard._awaited(rank)
    told = str(Guard._explain(rank, RuntimeError("Timed out waiting 15000ms for recv operation to complete")))
    assert told.startswith("rank 2 did not answer in time: it was last seen in forward of step 7")
    rank._world = World(2, 3)
    assert "Timed out" in str(Guard._explain(rank, RuntimeError("Timed out waiting 15000ms"))), "not by itself"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"step": 1}',
        '{"step": 1, "phase": "lunch", "collectives": 0, "at_s": 1.0}',
        '{"step": "1", "phase": "plan", "collectives": 0, "at_s": 1.0}',
        '{"step": 1, "phase": "plan", "collectives": 0, "at_s": null}',
        '{"step": 1, "phase": ["plan"], "collectives": 0, "at_s": 1.0}',
    ],
)
def test_a_damaged_sign_is_none(hearts: list[Heartbeat], tmp_path: Path, text: str) -> None:
    hearts[0].beat("forward", 4)
    assert behind(tmp_path / "logs", 3)
    (tmp_path / "logs" / "heartbeat-rank1.json").write_text(text, encoding="utf-8")
    assert behind(tmp_path / "logs", 3) == []
