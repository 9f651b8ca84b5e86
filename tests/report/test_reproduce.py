"""A study that is run again: which verdicts fall as they did, and how that is kept for the report."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from synthetic import write_unequal, write_virtual

from analysis.freeze import freeze
from analysis.load import load_study
from ddpsched.errors import DataError
from report.build import FROZEN
from report.render import report
from report.reproduce import compare, outcome, run_study
from report.reproduce import main as reproduce
from report.results import collect, read


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Freeze a study on virtual ranks, and one of unequal ranks."""
    root = tmp_path_factory.mktemp("outputs")
    for study in (write_virtual(root / "virtual"), write_unequal(root / "unequal")):
        freeze(load_study(study), root / "results" / "studies" / study.name)
    return root / "results"


def claim(name: str, holds: bool | None) -> dict[str, Any]:
    return {
        "id": name,
        "setting": "s",
        "statement": name,
        "timed": True,
        "holds": holds,
        "verdict": None,
        "value": 1.0,
        "threshold": 2.0,
    }


def test_comparison() -> None:
    frozen = [claim("a", True), claim("b", True), claim("c", True), claim("d", False), claim("e", False)]
    frozen += [claim("f", None), claim("h", True)]
    fresh = [claim("a", True), claim("b", False), claim("c", None), claim("d", False), claim("e", True)]
    fresh += [claim("f", True), claim("g", False)]
    outcomes = {row["id"]: row["outcome"] for row in compare(frozen, fresh)}
    assert outcomes == {
        "a": "the same", "b": "another", "c": "not shown", "d": "the same", "e": "another", "h": "not shown",
        "g": "new",
    }  # fmt: skip


def test_outcome_of_timed_and_computed_verdicts() -> None:
    frozen = [claim("a", True), claim("b", True) | {"timed": False}, claim("c", True) | {"timed": False}]
    frozen += [claim("d", None), claim("e", True)]
    fresh = [claim("a", False), claim("b", True) | {"timed": False}, claim("g", True), claim("d", True)]
    fresh += [claim("e", None)]
    assert outcome(compare(frozen, fresh)) == {
        "timed": 2, "timed_same": 0, "words": 0, "words_same": 0, "computed": 2, "computed_same": 1,
        "others": ["a (then yes, now no)", "c (then yes, now not measured)", "e (then yes, now undecided)"],
    }  # fmt: skip


def test_a_verdict_is_the_same_only_word_for_word() -> None:
    frozen = [claim("a", False) | {"verdict": "slower"}, claim("b", True) | {"verdict": "faster"}]
    fresh = [claim("a", False) | {"verdict": "not told apart from A/A"}, claim("b", True) | {"verdict": "faster"}]
    found = outcome(compare(frozen, fresh))
    assert (found["words"], found["words_same"], found["timed_same"], found["others"]) == (
        2, 1, 1, ["a (then slower, now not told apart from A/A)"]
    )  # fmt: skip


def test_a_study_runs_again_under_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = list[list[str]]()

    def start(command: list[str], check: bool) -> SimpleNamespace:
        commands.append(command)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr("report.reproduce.subprocess.run", start)
    known = collect([FROZEN / "studies" / "memory"])
    folder = run_study("memory", ["outputs=out"], known, force=True)
    assert folder == Path("out/memory-again")
    assert commands[0][-3:] == ["study=memory-again", "outputs=out", "--force"]
    with pytest.raises(DataError, match=r"memory.toml would do other work .*: global_batch = 64 .frozen: 32.; give"):
        run_study("memory", ["outputs=out", "global_batch=64"], known)
    run_study("memory", ["outputs=out", "steps=20"], known)
    with pytest.raises(DataError, match=r"memory.toml: runs of the frozen study are not there .*and 32 more"):
        run_study("memory", ["outputs=out", "steps=20"], known, whole=True)
    assert len(commands) == 2


@pytest.mark.slow
def test_reproduce_compares_a_finished_study(frozen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--frozen", str(frozen)]
    assert reproduce(["virtual", "--compare", str(frozen / "studies" / "virtual"), *where]) == 0
    out = capsys.readouterr().out
    assert "another: 0, not shown: 0, new: 0" in out
    assert "100.0% of" in out
    again = [*where, "--freeze"]
    assert reproduce(["unequal", "--compare", str(frozen / "studies" / "unequal"), *again]) == 0
    (kept,) = read(frozen).reproduced
    assert (kept["study"], kept["timed_same"], kept["computed_same"]) == ("unequal", kept["timed"], kept["computed"])
    assert f" of {kept['timed']} of unequal (cpu, then cpu); in all" in report(read(frozen), {})
    assert all(row["ratio"] > 0 for row in kept["throughputs"])
    assert "balanced" in {row["arm"] for row in kept["throughputs"]}
    assert {path.name for path in (frozen / "reproduced").iterdir()} == {"unequal-cpu.json", "unequal-cpu"}
    assert reproduce(["unequal", "--compare", str(frozen / "reproduced" / "unequal-cpu"), *where]) == 0
    assert len(read(frozen).reproduced) == 1
    shutil.rmtree(frozen / "reproduced")
    other = write_virtual(tmp_path / "virtual", slower=4.0)
    assert reproduce(["virtual", "--compare", str(other), *where]) == 1
    assert "at least 95% are asked for" in capsys.readouterr().out
    assert reproduce(["virtual", "--compare", str(frozen / "studies" / "unequal"), *again]) == 1
    assert "did other work than the frozen study: world_size = 2 (frozen: 4)" in capsys.readouterr().err
    assert (
        reproduce(["virtual", "--compare", str(write_virtual(tmp_path / "part" / "virtual", packed=False)), *again])
        == 1
    )
    assert "runs of the frozen study are not there (packed-virtual-g4-s0, " in capsys.readouterr().err
    assert not (frozen / "reproduced").exists(), "nothing is kept of these"
    assert reproduce(["absent", *where]) == 1
    assert "study absent: is none of the frozen ones, unequal" in capsys.readouterr().err
    assert reproduce(["virtual", "--compare", str(other), *where, "a=1"]) == 1
    assert "nothing is run with --compare" in capsys.readouterr().err
    assert reproduce(["virtual", "--frozen", str(tmp_path)]) == 1
    assert "no frozen results" in capsys.readouterr().err
