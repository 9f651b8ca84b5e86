"""Environments of the suite: their constraints follow pyproject.toml, and a failed test is noticed."""

import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from experiments.reliability import matrix
from experiments.reliability.environments import ENVIRONMENTS, lower_bounds, oldest_constraints, requirements
from experiments.reliability.matrix import copied, judge, python_of

ENVIRONMENT = ENVIRONMENTS[0]


def test_constraints_are_the_lower_bounds(tmp_path: Path) -> None:
    project = tmp_path / "pyproject.toml"
    extras = '[project.optional-dependencies]\nreport = ["D_e.f==4"]\ndev = ["g"]\n'
    project.write_text(f'[project]\ndependencies = ["a>=1.2", "b[x]>=3.3.2,<5"]\n{extras}')
    assert lower_bounds(project) == {"a": "1.2", "b": "3.3.2", "d-e-f": "4"}
    assert oldest_constraints(project) == "a==1.2\nb==3.3.2\nd-e-f==4\n"


def test_each_requirement_allows_its_oldest_version() -> None:
    bounds = lower_bounds()
    for each in requirements():
        assert isinstance(each, Requirement)
        assert each.name in ("pandas-stubs",) or each.specifier.contains(bounds[each.name.lower()])


@pytest.mark.parametrize(
    ("last", "measured", "holds"),
    [
        ("= 3100 passed, 4 skipped, 2 warnings in 700.10s =", "3,100 passed, 0 failed", True),
        ("2 failed, 3098 passed in 700.10s (0:11:40)", "3,098 passed, 2 failed", False),
        ("3098 passed, 1 error in 7.1s", "3,098 passed, 1 failed", False),
        ("no tests ran in 1s", "no result: no tests ran in 1s", False),
        ("INTERNALERROR> no", "no result: INTERNALERROR> no", False),
    ],
)
def test_the_finding(last: str, measured: str, holds: bool) -> None:
    finding = judge(ENVIRONMENT, f"FAILED tests/test_a.py::test_b - no\n{last}\n", {"torch": "2.6"}, 1.0)
    assert (finding.measured, finding.holds) == (measured, holds)
    assert finding.details["failed"] == ["tests/test_a.py::test_b"]


def test_a_failing_test_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_good(): pass\ndef test_bad(): assert False\n")
    finding = judge(ENVIRONMENT, matrix.suite(Path(sys.executable), tmp_path, 1), {}, 1.0)
    assert (finding.measured, finding.details["failed"]) == ("1 passed, 1 failed", ["test_it.py::test_bad"])


def test_the_copy_is_what_git_knows(tmp_path: Path) -> None:
    if not (matrix.ROOT / ".git").exists():
        # an archive of the sources has no list of files that could be copied
        pytest.skip("the sources lie in no git checkout, so that nothing says which files are theirs")
    checkout = copied(tmp_path)
    assert (checkout / "pyproject.toml").read_bytes() == (matrix.ROOT / "pyproject.toml").read_bytes()
    assert not (checkout / ".git").exists()


def test_pythons_are_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    own = tmp_path / "versions" / "3.99.1" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.touch()
    assert python_of("3.99") == str(own)
    assert python_of("3.98") is None


def test_an_unknown_name_is_refused() -> None:
    words = [sys.executable, "-m", "experiments.reliability.matrix", "--only", "python99"]
    ended = subprocess.run(words, cwd=matrix.ROOT, capture_output=True, text=True)
    assert ended.returncode == 2
    assert "oldest, python312, python313" in " ".join(ended.stderr.split())
