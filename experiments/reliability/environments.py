"""The environments that the suite is run in: other Pythons, and the oldest packages that pyproject.toml allows.

``python -m experiments.reliability.environments`` prints the oldest ones, as a constraints file for pip.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
TESTED = ("report", "dev")  # the extras that the suite needs


@dataclass(frozen=True)
class Environment:
    """An environment: its Python, and whether its packages are the oldest or the newest."""

    name: str
    python: str
    oldest: bool = False


ENVIRONMENTS = (
    Environment("oldest", "3.11", oldest=True),
    Environment("python312", "3.12"),
    Environment("python313", "3.13"),
)


def requirements(pyproject: Path = PYPROJECT) -> list[Requirement]:
    """Return what the suite requires, by pyproject.toml."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    return [
        Requirement(line) for line in (*project["dependencies"], *(word for name in TESTED for word in extras[name]))
    ]


def lower_bounds(pyproject: Path = PYPROJECT) -> dict[str, str]:
    """Return the oldest version that each requirement allows, by package; one without a bound is left out.

    >>> lower_bounds()["numpy"]
    '1.26'
    """
    found: dict[str, str] = {}
    for each in requirements(pyproject):
        versions = [part.version for part in each.specifier if part.operator in (">=", "==", "~=")]
        if versions:
            found[canonicalize_name(each.name)] = versions[0]
    return found


def oldest_constraints(pyproject: Path = PYPROJECT) -> str:
    """Return a constraints file for pip: each package at the oldest release of its lower bound.

    A bound of two numbers, such as 1.26, is a series; pip takes its first release by "==1.26".

    >>> "torch==2.6" in oldest_constraints().splitlines()
    True
    """
    return "".join(f"{name}=={version}\n" for name, version in sorted(lower_bounds(pyproject).items()))


if __name__ == "__main__":
    print(oldest_constraints(), end="")
