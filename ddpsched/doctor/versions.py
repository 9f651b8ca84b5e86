"""Versions of Python and of packages, against what the installed ddpsched requires."""

import platform
from collections.abc import Mapping, Sequence
from importlib import metadata

from ddpsched.doctor.finding import Finding, Setting

NAME = "versions"
SHOWN = ("torch", "transformers", "datasets", "numpy", "pyarrow", "pydantic")
INSTALL = "pip install -c constraints.txt -e . in a checkout of ddpsched"


def check(_: Setting) -> list[Finding]:
    """Return the finding on versions."""
    try:
        about = metadata.metadata("ddpsched")
    except metadata.PackageNotFoundError:
        return [Finding(NAME, "warn", "ddpsched is not installed, so what it requires is not known here", INSTALL)]
    requirements = [each for each in metadata.requires("ddpsched") or [] if "extra ==" not in each]
    python = about["Requires-Python"] or ""
    return [judge(platform.python_version(), python, requirements, installed())]


def installed() -> dict[str, str]:
    """Return the version of each installed package, by its canonical name: tomli-w, not tomli_w."""
    from packaging.utils import canonicalize_name

    names = [(each.metadata["Name"], each.version) for each in metadata.distributions()]
    return {canonicalize_name(name): version for name, version in reversed(names) if name}  # the first is imported


def judge(python: str, requires_python: str, requirements: Sequence[str], found: Mapping[str, str]) -> Finding:
    """Return the finding for requirements such as "torch>=2.6", of which ``found`` has the installed versions."""
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet
    from packaging.utils import canonicalize_name

    wrong, install = [], []
    if not SpecifierSet(requires_python).contains(python, prereleases=True):
        remedy = f"make a virtual environment with a Python {requires_python}, and there {INSTALL}"
        return Finding(NAME, "fail", f"Python {python}, required {requires_python}", remedy)
    for requirement in map(Requirement, requirements):
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        version, specifier = found.get(canonicalize_name(requirement.name)), requirement.specifier
        if version is None or not specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} {version or 'is missing'}, required {specifier or 'in any version'}")
            install.append(f'"{requirement.name}{specifier}"')
    if wrong:
        return Finding(NAME, "fail", "; ".join(wrong), f"pip install {' '.join(install)}")
    shown = ", ".join(f"{name} {found[name]}" for name in SHOWN if name in found)
    return Finding(NAME, "ok", f"Python {python}, {shown}: all {len(requirements)} requirements are met")
