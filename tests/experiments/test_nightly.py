"""The nightly command: which checks it runs, and that one that fails is not the last."""

import shlex
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from experiments.reliability import nightly
from experiments.reliability.checks import CHECKS, SHORT


def test_short_forms_are_of_checks_that_there_are() -> None:
    assert SHORT.keys() <= CHECKS.keys()
    for name, words in SHORT.items():
        assert shlex.split(words)[0] == CHECKS[name].split()[0]


def test_a_check_that_fails_does_not_keep_the_next_from_running(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = list[list[str]]()

    def run(command: list[str], **_: Any) -> SimpleNamespace:
        ran.append(command[2:])
        return SimpleNamespace(returncode="faults" in command[2])

    monkeypatch.setattr(subprocess, "run", run)
    ended = CliRunner().invoke(nightly.app, ["faults", "healthy", "--short"])
    assert ended.exit_code == 1
    assert [words[0] for words in ran] == ["experiments.reliability.faults", "experiments.reliability.healthy"]
    assert "out of memory" in ran[0]
    assert ended.output.splitlines()[-1] == "failed: faults"
    ended = CliRunner().invoke(nightly.app, ["healthy", "--freeze"])
    assert (ended.exit_code, ran[-1]) == (0, ["experiments.reliability.healthy", "--freeze"])
    assert ended.output.splitlines()[-1] == "all 1 checks hold"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["kill"], "'kill' is no check; they are planned_kills, small_data"),
        (["suite", "--short"], "'suite' is no check; they are faults, kills_2_ranks"),
        (["--short", "--freeze"], "--short and --freeze: a short form is no result"),
    ],
)
def test_what_is_refused(words: list[str], message: str) -> None:
    ended = CliRunner().invoke(nightly.app, words)
    assert ended.exit_code == 1
    assert message in ended.output
