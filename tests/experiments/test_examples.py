"""The examples: each script runs on two ranks, and after.py has the gradient of one process, in a few changed lines."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.examples.pairs import PAIRS, diff, num_changed, path_of
from experiments.examples.trial import Trial, trials

ROOT = Path(__file__).parents[2]
MOST = {"torch": 2, "trainer": 2, "accelerate": 5, "lightning": 5}  # lines changed
REPEATING = {"trainer", "accelerate"}  # whose last step repeats a batch of the first, where ranks have no equal share
INEXACT = {"trainer", "causal_lm", "split"}  # whose loops without ddpsched take another gradient than the mean


@pytest.fixture(scope="module")
def ran() -> dict[tuple[str, str], Trial]:
    for package in ("accelerate", "pytorch_lightning"):
        pytest.importorskip(package)
    scripts = [(name, which, False) for name in PAIRS for which in ("before", "after")]
    return dict(zip([script[:2] for script in scripts], trials(scripts), strict=True))


@pytest.mark.slow
@pytest.mark.xdist_group("ran")  # on one worker, as all examples run once
@pytest.mark.parametrize("name", PAIRS)
def test_after_is_exact(ran: dict[tuple[str, str], Trial], name: str) -> None:
    trial = ran[name, "after"]
    assert trial.steps >= 20
    assert trial.exactly_once
    assert trial.gradient <= 2e-6
    assert trial.parameters <= 1e-6


@pytest.mark.slow
@pytest.mark.xdist_group("ran")  # on one worker, as all examples run once
@pytest.mark.parametrize("name", PAIRS)
def test_before_runs(ran: dict[tuple[str, str], Trial], name: str) -> None:
    """It is exact where its ranks' batches are equal, and its framework takes the mean; else the check sees it."""
    trial = ran[name, "before"]
    assert trial.exactly_once == (name not in REPEATING)
    assert trial.gradient > 1e-2 if name in INEXACT else trial.gradient <= 2e-6


@pytest.mark.parametrize("name", MOST)
def test_few_lines_change(name: str) -> None:
    assert 1 <= num_changed(name) <= MOST[name]


@pytest.mark.parametrize("name", PAIRS)
def test_scripts_are_short(name: str) -> None:
    for which in ("before", "after"):
        assert len(path_of(name, which).read_text().splitlines()) < 80


def test_a_difference_is_printed() -> None:
    lines = diff("torch")
    assert (
        "+    loader = ddpsched.balanced(DataLoader(data, batch_size=16, sampler=sampler, collate_fn=collate))" in lines
    )
    done = subprocess.run(
        [sys.executable, "-m", "experiments.examples", "torch", "--diff"], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.splitlines()) == (0, lines)


def test_an_unknown_name() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "experiments.examples", "tf"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr == f"error: 'tf' is none of the examples {', '.join(PAIRS)}\n"


@pytest.mark.slow
@pytest.mark.parametrize("which", ["before", "after"])
@pytest.mark.parametrize("name", PAIRS)
def test_under_torchrun(name: str, which: str, tmp_path: Path) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = [*launch, str(path_of(name, which))]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_the_recipes_count_the_same_lines() -> None:
    rows = re.findall(r"examples/(\w+)/after\.py\).*\| (\d+) \|$", (ROOT / "report/notes/recipes.md").read_text(), re.M)
    assert {name: int(count) for name, count in rows} == {name: num_changed(name) for name in PAIRS}


def test_the_readmes_script_is_the_example() -> None:
    blocks = (ROOT / "README.md").read_text(encoding="utf-8").split("```python\n")[1:]
    assert path_of("torch", "after").read_text(encoding="utf-8") in [block.split("```")[0] for block in blocks]
    [changes] = re.findall(r"```diff\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
    of_loop = [line for line in diff("torch") if line[0] in "+-" and "    " in line]
    assert changes.splitlines() == of_loop
