"""The check of plan digests, in short, and that it notices plans that hang on a hash seed or on the order of ranks."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.reliability import digests, plan_streams
from experiments.reliability.digests import differing

HASHED = """
import sys
from ddpsched.step_plan import StepPlan
from experiments.reliability import plan_streams
honest = StepPlan.digest_hex.fget
StepPlan.digest_hex = property(lambda plan: honest(plan) + str(hash("a") if plan.step == 1 else ""))
sys.exit(plan_streams.main(sys.argv[1:]))
"""


def test_all_digests_are_equal() -> None:
    ended = CliRunner().invoke(digests.app, ["--steps", "60", "--seeds", "2"])
    assert ended.exit_code == 0, ended.output
    assert "60 steps of 20 cases" in ended.output
    assert ": 0 cases" in ended.output


def test_steps_are_shared_out() -> None:
    assert sum(plan_streams.shares(10_000).values()) == 10_000
    assert sum(plan_streams.shares(7).values()) == 7


def test_plans_that_hang_on_the_hash_seed_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "planted_streams.py").write_text(HASHED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(digests, "PLANNER", "planted_streams")
    ended = CliRunner().invoke(digests.app, ["--steps", "40", "--seeds", "2"])
    assert ended.exit_code == 1
    assert "FAULT static: " in ended.output


def test_offers_in_another_order_than_the_ranks_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that stacks its ranks' rows as they come makes other plans than one that sorts them."""
    case = plan_streams.CASES["minmax"]
    found = [{"minmax": plan_streams.digests(case, 3, seed=0)}]
    assert differing(found) == []
    monkeypatch.setattr(plan_streams.Shuffled, "offer", _as_they_come)
    assert differing([*found, {"minmax": plan_streams.digests(case, 3, seed=5)}])


def _as_they_come(exchange: plan_streams.Shuffled, rows: plan_streams.Messages) -> plan_streams.Messages:
    exchange.table = rows
    return rows
