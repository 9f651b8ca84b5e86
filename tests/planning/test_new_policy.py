"""CONTRIBUTING's worked example of a new policy: one file, and one line in the dictionary."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EPOCH = """
import numpy as np
from ddpsched import BatchSampler, World
lengths = np.random.default_rng(0).integers(1, 60, 48)
ranks = [BatchSampler(lengths, global_batch=8, world=World(r, 2), policy={"kind": "snake", "run": 2}) for r in range(2)]
print(sorted(i for rank in ranks for ids in rank for i in ids) == list(range(48)))
"""


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the package and add the policy as the section describes."""
    folder = tmp_path_factory.mktemp("extended")
    shutil.copytree(ROOT / "ddpsched", folder / "ddpsched", ignore=shutil.ignore_patterns("__pycache__"))
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    assert len(code.splitlines()) <= 32
    policies = folder / "ddpsched" / "planning" / "policies"
    (policies / "snake.py").write_text(code, encoding="utf-8")
    names = policies / "__init__.py"
    known = names.read_text(encoding="utf-8")
    known = known.replace('    "static": Static,\n', '    "static": Static,\n    "snake": Snake,\n')
    imported = "from ddpsched.planning.policies.snake import Snake\n"
    names.write_text(
        known.replace("from ddpsched.planning.policies.static", f"{imported}from ddpsched.planning.policies.static")
    )
    return folder


def python(folder: Path, *words: str) -> str:
    result = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_a_sampler_takes_it_with_its_option(extended: Path) -> None:
    assert python(extended, "-c", EPOCH) == "True\n"


def test_runs_and_comparisons_take_it(extended: Path) -> None:
    (extended / "lengths.txt").write_text("\n".join(str(5 + i % 40) for i in range(64)))
    words = ["lengths.txt", "--world-size", "2", "--global-batch", "8", "--policy", "snake"]
    assert "snake" in python(extended, "-m", "ddpsched", "plan", *words)
    (extended / "run.toml").write_text(
        'name = "snake"\noutputs = "."\nsteps = 3\nglobal_batch = 8\nworld_size = 2\ndata.size = 50\n'
        'executor.kind = "simulated"\npolicy.kind = "snake"\n'
    )
    assert "done: runs/snake" in python(extended, "-m", "ddpsched", "run", "run.toml")


def test_an_option_that_it_does_not_have_is_refused(extended: Path) -> None:
    code = "from ddpsched.config import parse\nparse({'steps': 1, 'policy': {'kind': 'snake', 'pool_size': 3}})"
    with pytest.raises(AssertionError, match="pool_size belongs to kind = 'pool', not 'snake'"):
        python(extended, "-c", code)
