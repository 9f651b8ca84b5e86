"""Whether the suite passes on other Pythons, and with the oldest packages that pyproject.toml allows.

``python -m experiments.reliability.matrix [--only NAME] [--keep] [--freeze]``

One environment after another (experiments/reliability/environments.py): made in a temporary folder, the suite run in a
copy of this checkout, and removed, unless ``--keep``. Each takes gigabytes while it is there, as PyPI's torch brings
CUDA, and each is a finding of its own.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from experiments.reliability.environments import ENVIRONMENTS, Environment, oldest_constraints
from experiments.reliability.findings import Finding, Freeze, report

ROOT = Path(__file__).parents[2]
NAMED = ("torch", "transformers", "tokenizers", "datasets", "numpy", "pulp", "accelerate", "pytest")
COUNTS = re.compile(r"(\d+) (passed|failed|errors?|skipped)")
BAD = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def python_of(version: str) -> str | None:
    """Return an interpreter of this version, on the path or of pyenv; None where there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    installed = sorted(pyenv.glob(f"{version}.*/bin/python"))
    return str(installed[-1]) if installed else shutil.which(f"python{version}")


def copied(folder: Path) -> Path:
    """Copy what git knows of this checkout, as it is now; return the copy."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).is_file():
            target = folder / "checkout" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
    return folder / "checkout"


def install(environment: Environment, python: str, folder: Path, checkout: Path) -> Path:
    """Make the environment; return its interpreter. Raises CalledProcessError where pip fails."""
    subprocess.run([python, "-m", "venv", str(folder / "venv")], check=True)
    own = folder / "venv" / "bin" / "python"
    constraints = checkout / "constraints.txt"
    if environment.oldest:
        constraints = folder / "oldest.txt"
        constraints.write_text(oldest_constraints(checkout / "pyproject.toml"), encoding="utf-8")
    words = ["--quiet", "--no-compile", "--no-cache-dir", "--constraint", str(constraints)]
    subprocess.run([str(own), "-m", "pip", "install", *words, "--editable", f"{checkout}[dev,report]"], check=True)
    return own


def versions(python: Path) -> dict[str, str]:
    """Return the versions of some packages in that environment."""
    script = (
        "import json, sys; from importlib.metadata import version; "
        "print(json.dumps({name: version(name) for name in sys.argv[1:]}))"
    )
    printed = subprocess.run([str(python), "-c", script, *NAMED], capture_output=True, text=True, check=True).stdout
    found: dict[str, str] = json.loads(printed)
    return found


def suite(python: Path, checkout: Path, workers: int) -> str:
    """Run the suite; return what it prints."""
    environ = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")}
    command = [str(python), "-m", "pytest", "-q", "--numprocesses", str(workers), "--dist", "loadfile"]
    ended = subprocess.run(command, cwd=checkout, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return ended.stdout.decode(errors="replace")


def judge(environment: Environment, printed: str, facts: dict[str, str], seconds: float) -> Finding:
    """Return the finding on a suite that printed this."""
    last = printed.strip().splitlines()[-1:] or [""]
    counts = {word.rstrip("s"): int(number) for number, word in COUNTS.findall(last[0])}
    bad = counts.get("failed", 0) + counts.get("error", 0)
    measured = f"{counts.get('passed', 0):,} passed, {bad} failed" if counts else f"no result: {last[0][:200]}"
    packages = "the oldest packages" if environment.oldest else "newest PuLP"
    return Finding(
        f"matrix_{environment.name}",
        f"The suite on Python {environment.python} with {packages}",
        "all pass",
        measured,
        counts.get("passed", 0) > 0 and not bad,
        f"python -m experiments.reliability.matrix --only {environment.name}",
        {"counts": counts, "failed": BAD.findall(printed), "versions": facts, "seconds": round(seconds)},
    )


@app.command()
def main(
    only: Annotated[str, typer.Option("--only", help="one environment: oldest, python312, python313")] = "",
    keep: Annotated[bool, typer.Option("--keep", help="leave the environment there, and name its folder")] = False,
    workers: Annotated[int, typer.Option(min=1, help="tests side by side")] = 2,
    freeze: Freeze = False,
) -> None:
    """Run the suite in each environment."""
    chosen = [each for each in ENVIRONMENTS if only in ("", each.name)]
    if not chosen:
        names = ", ".join(each.name for each in ENVIRONMENTS)
        raise typer.BadParameter(f"{only!r} is no environment; they are {names}", param_hint="--only")
    code = 0
    for environment in chosen:
        python = python_of(environment.python)
        if python is None:
            print(f"no Python {environment.python} here; install it with: pyenv install {environment.python}")
            code = 1
            continue
        folder, begin = Path(tempfile.mkdtemp(prefix=f"ddpsched-{environment.name}-")), time.monotonic()
        try:
            checkout = copied(folder)
            own = install(environment, python, folder, checkout)
            printed = suite(own, checkout, workers)
            finding = judge(environment, printed, versions(own), time.monotonic() - begin)
            if not finding.holds:
                print(printed[-20_000:])
            code |= report(finding, freeze)
        except subprocess.CalledProcessError as error:
            print(f"{environment.name}: {error}")
            code = 1
        finally:
            if keep:
                print(f"kept: {folder}")
            else:
                shutil.rmtree(folder, ignore_errors=True)
    raise typer.Exit(code)


if __name__ == "__main__":
    app()
