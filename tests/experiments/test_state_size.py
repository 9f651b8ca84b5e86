"""The check of a checkpoint's size, and that it notices windows that are written out in full."""

import pytest
from typer.testing import CliRunner

from ddpsched.step_plan import Position
from experiments.reliability import state_size


def test_the_state_is_small_and_written_windows_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_size, "POLICIES", {"minmax": state_size.POLICIES["minmax, K = 128"]})
    ended = CliRunner().invoke(state_size.app, ["--samples", "30000"])
    assert ended.exit_code == 0, ended.output
    assert "(minmax) of 1 policies, on 64 ranks" in ended.output
    monkeypatch.setattr(Position, "as_packed", Position.as_dict)
    assert CliRunner().invoke(state_size.app, ["--samples", "30000"]).exit_code == 1
