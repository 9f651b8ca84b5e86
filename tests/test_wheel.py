"""The wheel, installed where there is no checkout: its commands, those of the rooms beside the package included."""

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STUDY = """
[base]
study = "KIND"
steps = 6
global_batch = 8
world_size = 2
data.size = 64
train.save_model = false

[grid]
"policy.kind" = ["static", "balanced"]
"executor.kind" = ["KIND"]
"""

Command = Callable[..., str]


@pytest.fixture(scope="module")
def ddpsched(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Build and install the wheel; its dependencies are those of the tests."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT)], check=True, timeout=120)
    (wheel,) = folder.glob("ddpsched-*.whl")
    venv.create(folder / "env", with_pip=False)
    site = folder / "env" / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    subprocess.run([*pip, "install", "--no-deps", "--no-compile", "--target", str(site), str(wheel)], check=True)
    (site / "others.pth").write_text(
        f"{sysconfig.get_path('purelib')}\n"
    )  # without its own .pth files, as of checkouts
    work = folder / "work"
    work.mkdir()
    (work / "experiments").mkdir()  # of one's own, which is not that of the wheel
    (work / "experiments" / "__init__.py").write_text("raise SystemExit('the wrong one')\n")
    for kind in ("simulated", "distributed"):
        (work / f"{kind}.toml").write_text(STUDY.replace("KIND", kind))
    (work / "lengths.txt").write_text("".join(f"{3 + number % 7}\n" for number in range(64)))

    def run(*words: str, code: int = 0) -> str:
        clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
        command = [str(folder / "env" / "bin" / "python"), "-m", "ddpsched", *words]
        done = subprocess.run(command, cwd=work, env=clean, capture_output=True, text=True, timeout=120)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    return run


def test_planning(ddpsched: Command) -> None:
    assert ddpsched("--version") == "ddpsched 0.1.0\n"
    assert "recommended: " in ddpsched("plan", "lengths.txt", "--world-size", "2", "--global-batch", "4")
    drawn = ddpsched("plan", "--law", "rollouts", "--samples", "64", "--world-size", "2", "--global-batch", "4")
    assert "law rollouts, synthetic: 64 samples" in drawn
    assert "prefetch = 16" in ddpsched("config", "policy")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["simulated", "distributed"])
def test_a_study_its_analysis_and_its_report(ddpsched: Command, kind: str) -> None:
    ddpsched("sweep", f"{kind}.toml", "--no-pair")
    assert ddpsched("sweep", f"{kind}.toml", "--no-pair").startswith("skip ")
    assert "balanced" in ddpsched("analyse", f"outputs/{kind}")
    assert ddpsched("report", f"outputs/{kind}", "--output", "built").startswith("built")
    assert "usage: " in ddpsched("timeline", "--help")


@pytest.mark.slow
def test_certifying(ddpsched: Command) -> None:
    assert "holds: all 7 checks" in ddpsched("certify", "--policy", "balanced", "--world-size", "2")
