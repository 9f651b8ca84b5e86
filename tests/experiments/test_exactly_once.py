"""The trials of exactly-once planning, in short, and that they notice a loss."""

from typing import Any

import pytest
from typer.testing import CliRunner

from experiments.reliability import exactly_once


def run(*words: str) -> Any:
    return CliRunner().invoke(exactly_once.app, words)


def test_nothing_is_lost_or_repeated_in_kills() -> None:
    ended = run("kills", "--count", "1500")
    assert ended.exit_code == 0, ended.output
    assert "0 samples lost, 0 repeated" in ended.output


def test_little_data_is_planned_exactly_or_refused() -> None:
    ended = run("small", "--most", "2")
    assert ended.exit_code == 0, ended.output
    assert "0 samples lost and 0 repeated" in ended.output


def test_a_loss_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where waiting samples are forgotten when ranks change, the trials fail."""
    monkeypatch.setattr("ddpsched.planning.planner.redealt", _forgets)
    assert run("kills", "--count", "300").exit_code == 1


def _forgets(position: Any, world_size: int) -> Any:
    from dataclasses import replace

    return replace(
        position, windows=tuple(position.windows[0][:0] for _ in range(world_size)) if position.windows else ()
    )
