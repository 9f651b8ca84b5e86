"""The walks through the package that CONTRIBUTING.md lists are those that real calls take."""

import subprocess
import sys

import pytest

from experiments.walks import BEGIN, CONTRIBUTING, END


@pytest.mark.slow
def test_they_are_as_listed() -> None:
    """A new process runs the walks, as values cached by earlier calls would shorten them."""
    printed = subprocess.run(
        [sys.executable, "-m", "experiments.walks"], cwd=CONTRIBUTING.parent, text=True, stdout=subprocess.PIPE
    )
    assert printed.returncode == 0
    listed = CONTRIBUTING.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert listed.strip() == printed.stdout.strip(), "write it anew: python -m experiments.walks --write"
