"""The soak, in short, and that it notices growth."""

import pytest
from typer.testing import CliRunner

from experiments.reliability import soak
from experiments.reliability.soak import Look, grown, slope


def looks(bytes_a_step: int, files: int = 0) -> list[Look]:
    return [Look(step, 10**8 + bytes_a_step * step, 5, 20 + files * step) for step in range(100, 200)]


def test_growth_is_measured_whatever_a_few_looks_say() -> None:
    assert slope(looks(700)) == 700
    odd = looks(700)
    odd[40] = Look(140, 10**9, 5, 20)
    assert slope(odd) == pytest.approx(700)


def test_more_files_are_noticed_and_one_that_is_open_for_a_moment_is_not() -> None:
    assert grown(looks(0, files=1)) == ["files"]
    moment = looks(0)
    moment[70] = Look(170, 10**8, 5, 22)
    assert grown(moment) == []


@pytest.mark.slow
def test_a_short_run_and_one_that_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first steps fill caches, so that the limit is another one here."""
    monkeypatch.setattr(soak, "LIMIT", 10.0**6)
    ended = CliRunner().invoke(soak.app, ["--steps", "100"])
    assert ended.exit_code == 0, ended.output
    assert "bytes a step over 90 steps after 10; the others constant" in ended.output
    few = CliRunner().invoke(soak.app, ["--steps", "100", "--warm-up", "60"])
    assert few.exit_code == 2
    assert "60 of 100 steps leave fewer than 50 that count" in " ".join(few.output.replace("│", "").split())
    monkeypatch.setattr(soak, "soak", lambda *_: {1: looks(2 * 10**6)})
    assert CliRunner().invoke(soak.app, ["--steps", "100"]).exit_code == 1
